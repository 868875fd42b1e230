"""A fresh checkout under a path with spaces: built, demonstrated, installed, and installed by pip."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator

import pytest
from support import debian, run
from support.cache import cache
from support.checkout import copy_checkout

pytestmark = pytest.mark.nightly

PROGRAMS = ("nvc-cli", "nvc-hook", "nvc-cdi-hook", "nvc-runtime", "nvcd", "nvc-spin")
NOBODY = 65534


@pytest.fixture(scope="module")
def clone() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="nvc clone-") as directory:
        os.chmod(directory, 0o755)
        path = os.path.join(directory, "a checkout")
        copy_checkout(path)
        run("make", "-s", "-C", path, "build", timeout=600, env=dict(os.environ))
        yield path


def make(clone: str, *words: str) -> str:
    return run("make", "-s", "-C", clone, *words, timeout=600, env=dict(os.environ)).stdout


def test_the_demo_and_an_installation(clone: str, scratch: str) -> None:
    assert make(clone, "demo").count("all sums right") == 2
    left = run(f"{clone}/build/stage/bin/nvc-cli", "vgpu", "ls", "--all", "--format=json").stdout
    assert json.dumps(f"{clone}/build/demo/rootfs") not in left, "it leaves no slice behind"
    prefix = os.path.join(scratch, "a prefix")
    make(clone, "install", f"PREFIX={prefix}")
    run(f"{prefix}/bin/nvc-cli", "sim", "create", f"{scratch}/driver")
    shown = run(f"{prefix}/share/nvc/first-container", "--root", f"{scratch}/driver", "nvidia-smi", "-L")
    assert shown.stdout.startswith("GPU 0: ")
    with open(f"{prefix}/lib/systemd/system/nvcd.service", encoding="utf-8") as unit:
        assert "\nExecStart=" + prefix.replace(" ", "\\x20") + "/bin/nvcd\n" in unit.read()
    make(clone, "uninstall", f"PREFIX={prefix}")
    assert not os.path.exists(prefix)


def test_pip(clone: str, scratch: str) -> None:
    """All programs, in a virtual environment of root's."""
    environment = os.path.join(scratch, "environment")
    run("/usr/bin/python3", "-m", "venv", environment)
    python = f"{environment}/bin/python"
    run(python, "-m", "pip", "install", "-q", clone, timeout=600, env=dict(os.environ))
    for name in PROGRAMS:
        run(f"{environment}/bin/{name}", "--help")
    nvc, driver = f"{environment}/bin/nvc-cli", f"{scratch}/driver"
    run(nvc, "sim", "create", driver, "--gpus", "1")
    run(python, "-c", "import nvc; nvc.Driver")
    spin = ("--memory", "1GiB", "--", f"{environment}/bin/nvc-spin", "--seconds", "1")
    assert "of 1.00 GiB taken" in run(nvc, "--root", driver, "vgpu", "run", *spin).stdout

    os.chown(f"{environment}/lib/nvc", NOBODY, NOBODY)
    done = run(nvc, "info", check=False)
    assert done.returncode == 1 and f"{environment}/lib/nvc: not owned by root" in done.stderr
    os.chown(f"{environment}/lib/nvc", 0, 0)
    run(python, "-m", "pip", "uninstall", "-q", "-y", "nvc", env=dict(os.environ))
    assert not os.path.exists(f"{environment}/lib/nvc") and not os.path.exists(nvc)


def test_the_demo_in_a_checkout_of_somebody_else(clone: str) -> None:
    """`sudo make demo`: root runs a copy of what others could change. Last, as it gives the checkout away."""
    for path, names, files in os.walk(clone):
        for name in (".", *names, *files):
            os.chown(os.path.join(path, name), NOBODY, NOBODY, follow_symlinks=False)
    assert make(clone, "demo").count("all sums right") == 2
    assert not [name for name in os.listdir("/var/lib") if name.startswith("nvc-demo-")]


def test_a_debian_below_a_space(scratch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests of packages and of systemd start from."""
    debian.ready()
    os.mkdir(f"{scratch}/a cache")
    run("mount", "--bind", cache(), f"{scratch}/a cache")
    monkeypatch.setenv("NVC_TESTS_CACHE", f"{scratch}/a cache")
    with debian.Debian(f"{scratch}/a debian", debian.ready()) as made:
        assert f"{scratch}/a cache/" in made.layers
        assert made.sh("python3 -c 'print(1 + 1)'").stdout == "2\n"
    run("umount", f"{scratch}/a cache")
