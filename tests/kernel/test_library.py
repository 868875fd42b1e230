"""The library, as a program of somebody else uses it: the examples of the documentation, with real containers."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from support import CLEAN_ENV, REPO, run
from support.plans import snapshot
from support.prestart import at_prestart

import nvc

EXAMPLES = os.path.join(REPO, "docs/examples")


def example(stage: str, name: str, *arguments: object, check: bool = True) -> Any:
    """Runs one with nothing but an installation's directory on Python's path."""
    environment = CLEAN_ENV | {
        "PYTHONPATH": os.path.join(stage, "lib/nvc/python"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [str(word) for word in arguments]
    return run(sys.executable, os.path.join(EXAMPLES, name), *words, env=environment, check=check)


def test_the_page_is_what_the_sources_say() -> None:
    with open(os.path.join(REPO, "docs/api.md"), encoding="utf-8") as page:
        assert page.read() == run(sys.executable, os.path.join(REPO, "packaging/apidoc.py")).stdout


def test_every_public_name_is_there() -> None:
    assert sorted(nvc.__all__) == sorted(name for names in nvc._HOMES.values() for name in names.split())
    for name in nvc.__all__:
        assert getattr(nvc, name).__name__ == name
    assert set(nvc.__all__) <= set(dir(nvc))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        nvc.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_an_import_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import nvc; print(*sorted(set(sys.modules) - before))"
    assert run(sys.executable, "-c", code, cwd=REPO).stdout.split() in (["nvc"], ["__future__", "nvc"])


def test_list_gpus(stage: str, sim_root: Any) -> None:
    lines = example(stage, "list_gpus.py", sim_root(gpus=2, mig=("", "2x3g.40gb"))).stdout.splitlines()
    assert lines[0] == "driver 580.159.04, CUDA 13.0"
    assert lines[1].startswith("0: NVIDIA H100 80GB HBM3") and "GPU-" in lines[1]
    assert [line.split(":")[0] for line in lines[2:]] == ["1", "  1", "  1"]


def test_the_configured_driver(scratch: str, sim_root: Any) -> None:
    """As nvc-cli finds it; without options, the library looks in `/`."""
    path = f"{scratch}/config.toml"
    with open(path, "w", encoding="ascii") as out:
        out.write(f'[nvidia-container-cli]\nroot = "{sim_root(gpus=1)}"\n[nvc]\ntimeout = 7\n')
    with nvc.Driver.configured(path) as driver:
        assert driver.version == "580.159.04" and driver.options.timeout == 7
    assert nvc.Driver().options.root == "/"
    with pytest.raises(nvc.NvcError, match="config.toml: no such file"):
        nvc.Driver.configured(f"{scratch}/other/config.toml")


def test_list_gpus_without_a_driver(stage: str, scratch: str) -> None:
    done = example(stage, "list_gpus.py", scratch, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(("initialization error", "detection error"))


def test_configure_a_container(stage: str, runc_bundle: Any, rootfs: Any, sim_root: Any) -> None:
    bundle, root = runc_bundle(rootfs()), sim_root(gpus=2)
    with at_prestart(bundle, "runc", "nvidia-smi -L") as container:
        done = example(stage, "configure_container.py", container.pid, bundle.rootfs, root)
        assert done.stdout.startswith("2 devices, ") and done.stderr == ""
        again = example(stage, "configure_container.py", container.pid, bundle.rootfs, root)
        assert again.stdout == "2 devices, 0 changes\n"
        names = container.release().stdout.splitlines()
    assert [name[:6] for name in names] == ["GPU 0:", "GPU 1:"]


def test_watch_a_slice(stage: str, runc_bundle: Any, rootfs: Any, sim_root: Any) -> None:
    bundle = runc_bundle(rootfs())
    with at_prestart(bundle, "runc", "true") as container:
        example(stage, "configure_container.py", container.pid, bundle.rootfs, sim_root(gpus=1), "10GiB")
        namespace = os.stat(f"/proc/{container.pid}/ns/mnt").st_ino
        lines = example(stage, "watch_slices.py", 1).stdout.splitlines()
    # Nobody has entered the container yet, so nobody can say what is in use.
    assert any(
        line.startswith(f"{namespace:x}") and line.endswith(" on 0: ?, processes: 1") for line in lines
    ), lines


def test_a_bad_container_changes_nothing(sim_root: Any, rootfs: Any) -> None:
    path = rootfs()
    before = snapshot(path)
    with nvc.Driver(nvc.DriverOptions(root=sim_root(gpus=1))) as driver:
        with pytest.raises(nvc.ContainerError):
            driver.configure(nvc.Container(1 << 22, path), nvc.Request(devices=("all",)))
        with pytest.raises(nvc.DeviceError):
            driver.select(nvc.Request(devices=("7",)))
    assert snapshot(path) == before


def test_a_held_container_is_not_its_successor(runc_bundle: Any, rootfs: Any, sim_root: Any) -> None:
    bundle = runc_bundle(rootfs())
    with nvc.Driver(nvc.DriverOptions(root=sim_root(gpus=1))) as driver:
        with at_prestart(bundle, "runc", "true") as container:
            held = nvc.Container(container.pid, bundle.rootfs).__enter__()
            container.release()
        try:
            assert held.layout.libs_dir
            with pytest.raises(nvc.NvcError):
                driver.configure(held, nvc.Request(devices=("all",), capabilities=("compute",)))
        finally:
            held.close()
        with pytest.raises(ValueError, match="not held"):
            held.layout  # noqa: B018


def test_the_examples_are_typed() -> None:
    names = [os.path.join(EXAMPLES, name) for name in sorted(os.listdir(EXAMPLES)) if name.endswith(".py")]
    assert len(names) == 3
    for name in names:  # each is a program of its own
        run(sys.executable, "-m", "mypy", "--config-file", os.path.join(REPO, "setup.cfg"), name, cwd=REPO)
