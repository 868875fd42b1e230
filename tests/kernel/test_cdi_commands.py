"""`nvc-cli cdi`, the installed command, on a simulated driver."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
import yaml
from support import CLEAN_ENV, PATIENCE, run
from support.begun import Begun
from support.cdi import schema_problems

from nvc.base.errors import InitializationError
from nvc.frontends.cdi.document import DocumentOptions
from nvc.frontends.cdi.refresh import refresh
from nvc.frontends.cdi.validate import problems
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions, Request


class Cdi:
    """Calls `nvc-cli --root ROOT cdi`."""

    def __init__(self, begun: Begun, root: str) -> None:
        self.begun = begun
        self.words = ("--root", root, "cdi")

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.begun(*self.words, *words, check=check)

    def refusal(self, *words: str) -> str:
        """Call, which must fail with exit 1 and one line on standard error: that line."""
        done = self(*words, check=False)
        assert done.returncode == 1 and done.stdout == "", done
        lines = [line for line in done.stderr.splitlines() if "simulated driver in" not in line]
        assert len(lines) == 1, done.stderr
        return lines[0]

    def document(self, *words: str) -> Any:
        """What `generate` prints, which must be valid."""
        made = json.loads(self("generate", *words).stdout)
        assert problems(made) == [] and schema_problems(made) == []
        return made


@pytest.fixture
def cdi(begun: Begun, sim_root: Any) -> Any:
    """Factory: `cdi(gpus=2)` is the command on a simulated driver of that kind."""
    return lambda **wanted: Cdi(begun, sim_root(**wanted))


def names(made: Any) -> list[str]:
    return [device["name"] for device in made["devices"]]


def test_generate(cdi: Any) -> None:
    call = cdi(gpus=2)
    made = call.document("--device-name-strategy", "index")
    assert names(made) == ["0", "1", "all"] and made["kind"] == "nvidia.com/gpu"
    assert made["cdiVersion"] == "0.5.0"
    assert "GPU-" in names(call.document())[1]
    assert names(call.document("--device-id", "1", "--device-name-strategy=type-index")) == ["gpu1", "all"]
    assert names(call.document("--device-id=1,0", "--no-all-device", "--device-name-strategy=index")) == [
        "1",
        "0",
    ]
    assert call.document("--vendor", "example.org", "--class=slice")["kind"] == "example.org/slice"


def test_capabilities_and_requirements(cdi: Any) -> None:
    """What NVIDIA's generator ignores."""
    call = cdi(gpus=1)
    utility = {
        mount["containerPath"]
        for mount in call.document("--capabilities=utility")["containerEdits"]["mounts"]
    }
    every = {mount["containerPath"] for mount in call.document()["containerEdits"]["mounts"]}
    compat = {
        mount["containerPath"] for mount in call.document("--capabilities=all")["containerEdits"]["mounts"]
    }
    assert utility < every < compat
    call.document("--require", "cuda>=12.0", "--require=driver>=500")
    assert "unsatisfied condition: cuda>=99" in call.refusal("generate", "--require", "cuda>=99")


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--device-id", "7"], "device error: 7: unknown device"),
        (["--class", ""], "--class: is empty"),
        (["--hook-path", "nvc-cdi-hook"], "--hook-path"),
        (["--capabilities", "compute,flying"], "--capabilities: flying"),
        (["--library-directory", "/nothing", "--output", "/nowhere/x.json"], "no such file or directory"),
        (["--disable-hook", "x"], "'x' is not one of"),
        (["--output", "/etc/"], "--output"),
    ],
)
def test_generate_refuses(cdi: Any, words: list[str], cause: str) -> None:
    assert cause in cdi(gpus=1).refusal("generate", *words)


def test_list(cdi: Any, scratch: str) -> None:
    call = cdi(gpus=1)
    directories = [f"{scratch}/static", f"{scratch}/dynamic"]
    words = [f"--spec-dir={directory}" for directory in directories]
    assert call("list", *words).stdout == ""
    for directory in directories:
        os.mkdir(directory)
    call("generate", "--device-name-strategy=index", "--output", f"{directories[0]}/a.yaml")
    done = call("list", *words)
    assert done.stdout.split() == ["nvidia.com/gpu=0", "nvidia.com/gpu=all"] and done.stderr == ""
    # In a later directory the same names win; twice in one, nobody has them.
    call("generate", "--device-name-strategy=index", "--output", f"{directories[1]}/b.json")
    listed = json.loads(call("list", "--format=json", *words).stdout)
    assert {device["file"] for device in listed["devices"]} == {f"{directories[1]}/b.json"}
    call(
        "generate", "--device-name-strategy=index", "--no-all-device", "--output", f"{directories[1]}/c.json"
    )
    done = call("list", *words)
    assert done.stdout.split() == ["nvidia.com/gpu=all"]
    assert "nvidia.com/gpu=0: in " in done.stderr


def test_list_with_damaged_files(cdi: Any, scratch: str) -> None:
    call = cdi(gpus=1)
    call("generate", "--output", f"{scratch}/good.json")
    with open(f"{scratch}/good.json", encoding="utf-8") as file:
        text = file.read()
    for name, content in (
        ("cut.json", text[:700]),
        ("cut.yaml", "cdiVersion: 0.5.0\nkind"),
        ("empty.json", ""),
    ):
        with open(f"{scratch}/{name}", "w", encoding="utf-8") as out:
            out.write(content)
    done = call("list", f"--spec-dir={scratch}")
    assert len(done.stdout.split()) == 3
    for name in ("cut.json", "cut.yaml", "empty.json"):
        assert f"{scratch}/{name}: " in done.stderr
    for name in ("cut.json", "cut.yaml", "empty.json"):
        failed = call("validate", f"{scratch}/good.json", f"{scratch}/{name}", check=False)
        assert (
            failed.returncode == 1 and f"{name}: " in failed.stderr and "good.json: valid" in failed.stdout
        )


def test_a_stale_specification_is_said(begun: Begun, sim_root: Any, scratch: str) -> None:
    from nvc.testing.sim import SimSpec, create

    root = sim_root(gpus=2)
    call = Cdi(begun, root)
    os.mkdir(f"{scratch}/cdi")
    path = f"{scratch}/cdi/nvidia.json"
    call("generate", "--output", path)
    for command in (("list", f"--spec-dir={scratch}/cdi"), ("validate", path)):
        assert call(*command).stderr == ""
    create(root, SimSpec(gpus=2, driver_version="590.10.01"))
    for command in (("list", f"--spec-dir={scratch}/cdi"), ("validate", path)):
        said = call(*command).stderr
        assert "is stale: it was made for driver 580.159.04-sim, this host has 590.10.01-sim" in said
        assert "libcuda.so.580.159.04, which does not exist" in said
    call("generate", "--output", path)
    create(root, SimSpec(gpus=1, driver_version="590.10.01"))
    assert "other devices or driver files" in call("validate", path).stderr


def test_transform(cdi: Any, launcher: str, scratch: str) -> None:
    call = cdi(gpus=1)
    text = call("generate", "--format=yaml").stdout
    root = call.words[1]
    words = ("transform", "root", "--from", root, "--to", "/host/driver")
    moved = json.loads(run(launcher, "cdi", *words, stdin=None, input=text).stdout)
    assert all(mount["hostPath"].startswith("/host/driver/") for mount in moved["containerEdits"]["mounts"])
    run(launcher, "cdi", *words, "--output", f"{scratch}/moved.yaml", stdin=None, input=text)
    with open(f"{scratch}/moved.yaml", encoding="utf-8") as file:
        assert yaml.safe_load(file) == moved


def test_refresh_writes_once(cdi: Any, scratch: str) -> None:
    call = cdi(gpus=1)
    where = f"--output-dir={scratch}/cdi"
    path = f"{scratch}/cdi/nvidia.com-gpu.json"
    assert call("refresh", where).stdout == f"{path}: written, 3 devices\n"
    before = os.stat(path)
    assert call("refresh", where).stdout == f"{path}: unchanged, 3 devices\n"
    after = os.stat(path)  # not all of it: reading a file may move the time of the last access
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert os.listdir(f"{scratch}/cdi") == ["nvidia.com-gpu.json"]


def test_many_refreshes_at_once(cdi: Any, launcher: str, scratch: str) -> None:
    call = cdi(gpus=2)
    command = [launcher, *call.words, "refresh", f"--output-dir={scratch}/cdi"]
    running = [
        subprocess.Popen(command, env=CLEAN_ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    said = [process.communicate(timeout=PATIENCE) for process in running]
    assert [process.returncode for process in running] == [0] * 6, said
    assert sorted(out.split(": ")[1].split(",")[0] for out, _ in said) == ["unchanged"] * 5 + ["written"]
    assert os.listdir(f"{scratch}/cdi") == ["nvidia.com-gpu.json"]
    assert call("validate", f"{scratch}/cdi/nvidia.com-gpu.json").stderr == ""


def test_refresh_waits_for_the_driver(sim_root: Any, scratch: str) -> None:
    """The driver appears between two attempts, as at boot; first without a device."""
    from nvc.testing.sim import SimSpec, create

    root = sim_root(gpus=1)
    os.rename(f"{root}/usr", f"{root}/later")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        create(root, SimSpec(gpus=1, mig=("on",) if len(pauses) < 3 else ()))

    how = DocumentOptions("/usr/bin/nvc-cdi-hook")
    request = Request(devices=("all",), capabilities=("utility",))
    words = (LinuxKernel(), DriverOptions(root=root), request, how, f"{scratch}/cdi", "json")
    with pytest.raises(InitializationError):
        refresh(*words, wait=0, pause=pause)
    assert pauses == [] and os.listdir(f"{scratch}/cdi") == []
    done = refresh(*words, wait=3600, pause=pause)
    assert done.changed and done.devices == 3 and pauses == [0.5, 1.0, 2.0]
