"""What is kept answers while nothing has changed, and not a moment longer."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable

import pytest
from support import run
from support.drivertree import LIBS, VERSION, DriverTree
from support.nightly import few

from nvc.discovery import discover, inventory
from nvc.discovery import key as key_module
from nvc.kernel import LinuxKernel, probe
from nvc.model.facts import HostFacts
from nvc.model.request import DriverOptions
from nvc.testing.sim import SimSpec, create

VDPAU = f"{LIBS}/vdpau"


@pytest.fixture
def keep(scratch: str) -> str:
    path = f"{scratch}/run"
    os.mkdir(path, 0o700)
    return path


@pytest.fixture
def tree(scratch: str, stage: str) -> DriverTree:
    """A simulated driver root with MIG; `stage` brings its libraries."""
    create(f"{scratch}/sim", SimSpec(gpus=2, mig=("", "2x3g.40gb"), mps=True))
    made = DriverTree(f"{scratch}/sim")
    made.library("libnvidia-later", directory=VDPAU, listed=False)
    return made


class Counted:
    """Calls discover() and counts the probes that it starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: str, keep: str) -> None:
        self.probes = 0
        self.options = DriverOptions(root=root)
        self.keep = keep
        real = probe.start_probe

        def count(*args: object) -> object:
            self.probes += 1
            return real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr("nvc.discovery.nvml.asking.start_probe", count)

    def __call__(self, **options: object) -> HostFacts:
        wanted = self.options.replace(**options) if options else self.options
        return discover(LinuxKernel(), wanted, self.keep)

    def asks_again(self, **options: object) -> bool:
        """Whether the next discovery starts a probe; the one after it does not, unless something was left out."""
        before = self.probes
        found = self(**options)
        asked = self.probes - before
        assert self(**options) == found
        assert self.probes - before == (2 if asked and found.warnings else asked)
        return asked == 1


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tree: DriverTree, keep: str) -> Counted:
    return Counted(monkeypatch, tree.path, keep)


def test_what_is_kept_is_what_was_found(counted: Counted) -> None:
    found = counted(inventory=False)
    assert counted.probes == 1
    assert counted() == found
    assert counted.probes == 2, "nothing was kept without the inventory"
    kept = counted()
    assert counted.probes == 2
    assert kept == found
    assert repr(kept) == repr(found), "not only equal: the same types all the way down"
    assert counted(inventory=False) == found
    assert counted.probes == 3


def repartition(tree: DriverTree) -> None:
    shutil.rmtree(tree.full("/proc/driver/nvidia/capabilities/gpu1/mig/gi1"))


def same_instance_again(tree: DriverTree) -> None:
    instance = tree.full("/proc/driver/nvidia/capabilities/gpu1/mig/gi1")
    shutil.copytree(instance, instance + "-new")
    shutil.rmtree(instance)
    os.rename(instance + "-new", instance)


def another_node(instance: str) -> Callable[[DriverTree], None]:
    """An instance made anew with the inodes that it had, as procfs gives them, and another device node."""

    def change(tree: DriverTree) -> None:
        with open(tree.full(f"/proc/driver/nvidia/capabilities/gpu1/mig/{instance}/access"), "w") as out:
            out.write("DeviceFileMinor: 8191\n")

    return change


def new_compute_instance(tree: DriverTree) -> None:
    tree.file("/proc/driver/nvidia/capabilities/gpu0/mig/gi9/ci0/access", "DeviceFileMinor: 85\n")


def replace_file(name: str) -> Callable[[DriverTree], None]:
    """Rewrites a file as an installer does: the same content in a new one."""

    def replace(tree: DriverTree) -> None:
        with open(tree.full(name), "rb") as file:
            content = file.read()
        tree.file(name, content)

    return replace


def add_file(name: str) -> Callable[[DriverTree], None]:
    return lambda tree: tree.file(name) and None


def grow_majors(tree: DriverTree) -> None:
    with open(tree.full("/proc/devices"), encoding="ascii") as file:
        text = file.read()
    tree.file("/proc/devices", text.replace("\nBlock", "400 nvidia-nvlink\n\nBlock"))


def remake_node(tree: DriverTree) -> None:
    os.unlink(tree.full("/dev/nvidia-modeset"))


def remove(name: str) -> Callable[[DriverTree], None]:
    return lambda tree: os.unlink(tree.full(name))


CHANGES: dict[str, Callable[[DriverTree], None]] = {
    "MIG repartitioned": repartition,
    "MIG instance made anew": same_instance_again,
    "MIG instance with another node": another_node("gi1"),
    "compute instance with another node": another_node("gi1/ci0"),
    "MIG instance added": new_compute_instance,
    "GPU added": lambda tree: tree.gpu("0000:99:00.0", 9),
    "loader cache replaced": replace_file("/etc/ld.so.cache"),
    "description replaced": replace_file("/proc/driver/nvidia/sim/description"),
    "module loaded": lambda tree: tree.directory("/sys/module/nvidia_drm"),
    "majors": grow_majors,
    "control node gone": remake_node,
    "library added beside libcuda": add_file(f"/usr/lib/{os.uname().machine}-linux-gnu/libnvidia-new.so"),
    "program installed": add_file("/usr/local/bin/nvidia-new"),
    "manifest installed": add_file("/etc/OpenCL/vendors/nvidia-new.icd"),
    "library removed from a subdirectory": remove(f"{VDPAU}/libnvidia-later.so.{VERSION}"),
    "module of the X server removed": remove("/usr/lib/xorg/modules/drivers/nvidia_drv.so"),
    "firmware installed": add_file("/lib/firmware/nvidia/580.159.04/gsp_new.bin"),
}


@pytest.mark.parametrize("change", few(CHANGES, 3))
def test_a_change_is_noticed(counted: Counted, tree: DriverTree, change: str) -> None:
    counted()
    assert not counted.asks_again()
    CHANGES[change](tree)
    assert counted.asks_again()


def test_a_reboot_is_noticed(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted()
    monkeypatch.setattr(key_module, "_BOOT_ID", "/proc/sys/kernel/random/uuid")  # another one on each read
    before = counted.probes
    counted()
    assert counted.probes == before + 1


def test_a_new_row_of_the_table_of_libraries_is_noticed(
    counted: Counted, scratch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = shutil.copy(key_module._TABLE, f"{scratch}/library_table.py")
    monkeypatch.setattr(key_module, "_TABLE", table)
    counted()
    counted()
    before = counted.probes
    with open(table, "a", encoding="utf-8") as out:
        out.write("#\n")
    counted()
    assert counted.probes == before + 1


def test_options_that_matter_are_part_of_the_key(counted: Counted) -> None:
    counted()
    for options in (
        {"search_path": "/usr/bin"},
        {"mps_directory": "/run/mps"},
        {"ldcache": "/etc/other.cache"},
    ):
        assert counted.asks_again(**options)
    counted()
    for same in ({"uid": 1234, "gid": 1234}, {"timeout": 99.0}):
        assert not counted.asks_again(**same)


def test_the_callers_extra_is_part_of_the_key(counted: Counted) -> None:
    counted(configuration=b"config 1")
    before = counted.probes
    counted(configuration=b"config 1")
    assert counted.probes == before
    counted(configuration=b"config 2")
    assert counted.probes == before + 1


def test_what_changes_unnoticed_is_read_every_time(counted: Counted, tree: DriverTree) -> None:
    assert {ipc.service for ipc in counted().ipcs} == {"persistenced", "mps"}
    os.unlink(tree.full("/run/nvidia-persistenced/socket"))
    tree.file("/proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    facts = counted()
    assert counted.probes == 1
    assert {ipc.service for ipc in facts.ipcs} == {"mps"}
    assert facts.proc_files[0].content == b"ModifyDeviceFiles: 0\n"
    tree.file("/run/nvidia-persistenced/socket")
    assert counted().warnings == ("socket /run/nvidia-persistenced/socket is left out: not a socket",)
    assert counted.probes == 1


def test_two_roots_are_kept_apart(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, scratch: str, keep: str
) -> None:
    create(f"{scratch}/other", SimSpec(gpus=3))
    other = Counted(monkeypatch, f"{scratch}/other", keep)
    assert (len(counted().gpus), len(other().gpus)) == (2, 3)
    assert not counted.asks_again()
    assert not other.asks_again()
    assert len(os.listdir(keep)) == 2


def test_a_kept_value_of_another_shape_is_not_used(counted: Counted, keep: str) -> None:
    found = counted()
    (name,) = os.listdir(keep)
    kept = inventory.load(name, keep)
    shapes = [(), 7, (1, 2), (kept[0], kept[1], ()), (kept[0], kept[1], kept[2][:-1]), (kept[0], 3, kept[2])]
    for value in [*shapes, (kept[0], kept[1], (None,) * len(kept[2]))]:
        assert inventory.store(name, value, keep)
        before = counted.probes
        assert counted() == found
        assert counted.probes == before + 1


def test_a_change_while_nvml_was_asked_is_not_kept(
    counted: Counted, tree: DriverTree, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    real = probe.start_probe

    def start_and_change(*args: object) -> object:
        repartition(tree)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("nvc.discovery.nvml.asking.start_probe", start_and_change)
    counted()
    assert os.listdir(keep) == []


def test_a_directory_of_somebody_else_is_not_used(counted: Counted, keep: str) -> None:
    os.chown(keep, 1234, 1234)
    counted()
    assert os.listdir(keep) == []
    os.chown(keep, 0, 0)
    counted()
    (name,) = os.listdir(keep)
    os.chown(f"{keep}/{name}", 1234, 1234)
    before = counted.probes
    counted()
    assert counted.probes == before + 1


HOT = """
import sys
sys.path[:0] = {path!r}
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions
from nvc.discovery import discover
discover(LinuxKernel(), DriverOptions(root={root!r}), {keep!r})
print(*sorted(name for name in sys.modules if name.startswith("nvc") or name in {unwanted!r}))
"""


def test_a_start_with_a_valid_key_imports_next_to_nothing(counted: Counted, keep: str) -> None:
    counted()
    unwanted = (
        "typing",
        "dataclasses",
        "enum",
        "json",
        "re",
        "contextlib",
        "pathlib",
        "subprocess",
        "ctypes",
    )
    script = HOT.format(path=sys.path, root=counted.options.root, keep=keep, unwanted=unwanted)
    loaded = run(sys.executable, "-I", "-S", "-B", "-c", script).stdout.split()
    assert not set(loaded) & set(unwanted)
    allowed = {"find", "host", "hostroot", "inventory", "key", "pack", "devices"}
    allowed |= {f"devices.{name}" for name in ("nodes", "proc", "sockets")}
    parts = {name.removeprefix("nvc.discovery.") for name in loaded if name.startswith("nvc.discovery.")}
    assert parts == allowed
    assert "nvc.kernel.probe" not in loaded


def fastest(function: Callable[[], object], times: int = 30) -> float:
    """The least of many runs, seconds: what the work costs on a machine that others use too."""
    best = 1.0
    for _ in range(times):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


@pytest.mark.nightly
def test_a_valid_key_is_cheap(scratch: str, stage: str, keep: str) -> None:
    """About a millisecond for one GPU; eight with seven MIG devices each stay below the rest of a start."""
    limits = {"one": (SimSpec(), 0.002), "many": (SimSpec(gpus=8, mig=("7x1g.10gb",)), 0.008)}
    for name, (spec, limit) in limits.items():
        create(f"{scratch}/{name}", spec)
        options = DriverOptions(root=f"{scratch}/{name}")
        discover(LinuxKernel(), options, keep)
        assert fastest(lambda options=options: discover(LinuxKernel(), options, keep)) < limit  # type: ignore[misc]
