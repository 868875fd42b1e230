"""Limits of cgroups that the driver refuses half-way: what stays of them is told."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest
from support import GIB, REPO, need, run
from support.bundle import Container
from support.configure import BASIC, Configure
from support.device_cgroup import Group
from support.memorylimits import get_limits
from support.vgpu import limits_of

from nvc.apply.cgroup.leaf import directory_of
from nvc.base.errors import ContainerError, DeviceError, InitializationError, MountError
from nvc.discovery import discover
from nvc.discovery.nvml.questions import MemoryLimit
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions, Request, SliceRequest
from nvc.model.selection import select
from nvc.model.slices.sizes import parse_size
from nvc.model.slices.slice import HeldCgroup, resolve
from nvc.slices.make.kernel_limits import cgroup_with_id, library_of, set_limits, with_limits
from nvc.slices.make.run import _own_leaf
from nvc.testing.sim.report import report

GPUS = ("GPU-a", "GPU-b")
UNLIMITED = (1 << 64) - 1
TIMEOUT = 20.0
SIZE = parse_size("--memory", "1g")
DRIVER = {"gpus": 1, "driver_version": "615.71.09"}


class Nvml:
    """An NVML that keeps what it is told, tests/data/nvml/limits.c."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.library = f"{directory}/libnvidia-ml.so.1"
        source = f"{REPO}/tests/data/nvml/limits.c"
        run(need("gcc"), "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", self.library, source, "-ldl")

    def write(self, name: str, text: str) -> None:
        with open(f"{self.directory}/{name}", "w", encoding="ascii") as file:
            file.write(text)

    def held(self, group: Group, *gpus: str) -> HeldCgroup:
        limits = tuple(MemoryLimit(gpu, 0, GIB) for gpu in gpus or GPUS[:1])
        return HeldCgroup(group.path, os.stat(group.path).st_ino, self.library, limits)

    def in_force(self) -> dict[tuple[str, str], int]:
        """Hard limits by cgroup and GPU."""
        with open(f"{self.directory}/set", encoding="ascii") as file:
            lines = [line.split() for line in file]
        return {(cgroup, gpu): int(hard) for cgroup, gpu, _, hard in lines}


@pytest.fixture
def nvml(scratch: str) -> Nvml:
    return Nvml(scratch)


@pytest.fixture
def groups() -> Iterator[tuple[Group, Group]]:
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(Group.make(2)), stack.enter_context(Group.make(2))


@contextlib.contextmanager
def in_cgroup(group: Group) -> Iterator[None]:
    """This process in another cgroup."""
    proc = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    before = directory_of(proc)
    os.close(proc)
    group.enter(os.getpid())
    try:
        yield
    finally:
        with open(f"{before}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(os.getpid()))


def not_reached() -> NoReturn:
    raise AssertionError("applied")


def test_one_of_several_cgroups_that_is_refused(nvml: Nvml, groups: tuple[Group, Group]) -> None:
    first, second = groups
    nvml.write("refuse", "2")
    with pytest.raises(ContainerError) as caught:
        with_limits((nvml.held(first), nvml.held(second)), TIMEOUT, not_reached)
    assert nvml.in_force() == {(first.path, "GPU-a"): GIB}
    text = str(caught.value)
    assert text.startswith(f"container error: isolate by the kernel: {second.path}: the driver refuses: GPU-a: ")
    assert f"and the cgroup {first.path} did not get its limits of before back (GPU-a unlimited): " in text


@pytest.mark.parametrize("error", [MountError("mount", "/x", "busy"), KeyboardInterrupt()])
def test_what_fails_later_tells_of_the_limit_that_stays(
    nvml: Nvml, groups: tuple[Group, Group], error: BaseException
) -> None:
    def fails() -> NoReturn:
        nvml.write("refuse", "2")
        raise error

    with pytest.raises((MountError, DeviceError)) as caught:
        with_limits((nvml.held(groups[0]),), TIMEOUT, fails)
    first = "mount error: mount: /x: busy" if isinstance(error, MountError) else "KeyboardInterrupt"
    kept = f"{first}, and the cgroup {groups[0].path} did not get its limits of before back (GPU-a unlimited): "
    assert kept in str(caught.value)


def test_a_driver_that_does_not_answer_may_have_set_them(nvml: Nvml, groups: tuple[Group, Group]) -> None:
    nvml.write("hang", "")
    with pytest.raises(InitializationError) as caught:
        set_limits(nvml.held(groups[0]), 1.0)
    assert nvml.in_force() == {(groups[0].path, "GPU-a"): GIB}
    assert f"{groups[0].path} may have the limits that were asked for: GPU-a 1 GiB" in str(caught.value)


@pytest.mark.driver(**DRIVER)
@pytest.mark.parametrize(
    ("place", "change"),
    [
        (".", lambda path: os.chown(path, 1000, 0)),
        ("..", lambda path: os.chmod(path, 0o775)),
        ("../..", lambda path: os.chown(path, 1000, 0)),
    ],
)
def test_a_library_that_others_can_change_is_not_loaded(
    driver: str, place: str, change: Callable[[str], None]
) -> None:
    """It would get root's rights."""
    facts = discover(LinuxKernel(), DriverOptions(root=driver))
    found = library_of(facts)
    assert os.path.basename(found).startswith("libnvidia-ml.so.") and not os.path.islink(found)
    changed = os.path.normpath(f"{found}/{place}")
    change(changed)
    with pytest.raises(DeviceError) as caught:
        library_of(facts)
    assert f"{changed}: not root alone can change it" in str(caught.value)


@pytest.mark.usefixtures("shim")
@pytest.mark.driver(**DRIVER)
def test_all_cgroups_of_a_slice_get_a_new_limit(
    container: Callable[..., Container], driver: str, launcher: str, groups: tuple[Group, Group]
) -> None:
    uuid = report(driver).gpus[0].uuid
    made = container("--vgpu-memory=1g")
    command = ["nsenter", "-m", "-t", str(made.pid), "sh", "-c", "echo in; read line"]
    change = (launcher, f"--root={driver}", "vgpu", "set", str(made.pid))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None and other.stdout.readline() == b"in\n"
        for group, pid in zip(groups, (made.pid, other.pid)):
            group.enter(pid)
        words = ("--device=0", *BASIC[1:], "--isolation=kernel", "--vgpu-memory=1g")
        Configure(launcher, driver)(made.pid, made.bundle.rootfs, words)
        assert [get_limits(driver, uuid, group.path)[1] for group in groups] == [GIB, UNLIMITED]
        run(*change, "--memory=2g")
        assert [get_limits(driver, uuid, group.path)[1] for group in groups] == [2 * GIB] * 2
        assert limits_of(made.pid) == [2 * GIB]
        inside = groups[1].child("inside")
        refusal = run(*change, "--memory=3g", check=False).stderr
        assert f"{groups[1].path}: not a leaf" in refusal and inside.path.endswith("inside")
        assert [get_limits(driver, uuid, group.path)[1] for group in groups] == [2 * GIB] * 2
        assert limits_of(made.pid) == [2 * GIB]
        other.stdin.close()
        other.wait()
        with open(f"{groups[0].mount}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(made.pid))


@pytest.mark.driver(**DRIVER)
def test_a_reservation_that_stays_keeps_its_cgroup(driver: str, nvml: Nvml) -> None:
    """A later run could not end it without that cgroup; and each says so."""
    facts = discover(LinuxKernel(), DriverOptions(root=driver))
    own = [one.replace(path=nvml.library) for one in facts.libraries if one.soname == "libnvidia-ml.so.1"]
    facts = facts.replace(driver_root="/", libraries=tuple(own))
    devices = resolve(facts, select(facts, Request(devices=("all",))), SliceRequest(memory=(SIZE,)))
    told: list[str] = []
    with Group.make(2) as group, in_cgroup(group):
        left = f"{group.path}/nvc-run-4194303"
        os.mkdir(left)
        nvml.write("refuse", "1")
        os.rmdir(_own_leaf(facts, devices, told.extend).path)
        assert os.path.exists(left)
        (warning,) = told
        assert warning.startswith(f"the driver still reserves memory for the cgroup {left}: container error: ")
        assert warning.endswith("; the cgroup stays, and the next `vgpu run --isolation kernel` here tries again")
        os.remove(f"{nvml.directory}/refuse")
        os.rmdir(_own_leaf(facts, devices, told.extend).path)
        assert not os.path.exists(left) and len(told) == 1
        assert nvml.in_force() == {(left, devices[0].uuid): UNLIMITED}
        os.mkdir(f"{group.path}/nvc-run-{os.getpid()}")  # of an earlier process with this number
        os.rmdir(_own_leaf(facts, devices, told.extend).path)


@pytest.mark.parametrize("name", ["docker-{}.scope", "{}", "pod"])
def test_the_cgroup_of_a_container_that_has_moved_inside(name: str) -> None:
    """By its id; what the container calls a cgroup of its own does not matter."""
    number = "3f" * 32
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process, Group.make(2, name.format(number)) as group:
        inside = f"{group.path}/{number}"
        os.mkdir(inside)
        try:
            with open(f"{inside}/cgroup.procs", "w", encoding="ascii") as procs:
                procs.write(str(process.pid))
            path = inside if name == "pod" else group.path
            assert cgroup_with_id(process.pid, number) == f"{os.stat(path).st_ino} {path}"
            assert cgroup_with_id(process.pid, number[:12]) == cgroup_with_id(process.pid, "5e" * 32) == ""
        finally:
            process.communicate()
            os.rmdir(inside)
