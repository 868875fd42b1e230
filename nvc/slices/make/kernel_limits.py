"""Isolation by the kernel: from driver 615 on it limits memory for a cgroup, whatever library a program loads.

The shim keeps the limit as well, and shows it. The driver reserves no memory for containers: it leaks the
reservation of a cgroup that is removed before it is told, as engines do. Admission counts their reservations.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat
from collections.abc import Callable
from typing import TypeVar

from nvc.apply.cgroup.find import named_after
from nvc.apply.cgroup.leaf import STEP, Leaf, check_unchanged, directory_of, leaf_of
from nvc.apply.target import Target
from nvc.base.errors import ContainerError, DeviceError, InputError, NvcError, and_also
from nvc.base.files import closing
from nvc.base.rundir import in_user_namespace
from nvc.discovery.nvml.questions import MemoryLimit, limited
from nvc.discovery.nvml.wire import LimitsRefused, parse_limits
from nvc.kernel import O_PATH, LinuxKernel
from nvc.kernel.probe import IDS_KEEP, start_probe
from nvc.model.facts import HostFacts
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.sizes import size_text
from nvc.model.slices.slice import HeldCgroup, SliceDevice

T = TypeVar("T")

SINCE = 615  # major number of the driver
NVML = "libnvidia-ml.so.1"
#: What a device that the slice must not use is limited to: 0 may mean something else to a driver.
LEAST = 1 << 20
HINT = "the shim limits memory on every driver: leave this isolation out, or use mig or mps"
LEFT_HINT = "set the limits again, or end the container"
_NO_PERMISSION, _NOT_FOUND, _MISSING = 4, 6, (3, 13)


def held_cgroup(facts: HostFacts, devices: tuple[SliceDevice, ...], target: Target) -> HeldCgroup:
    """The cgroup for which the driver is to limit the memory of a slice. Nothing is changed.

    For the slice of this process the driver keeps what it reserves, too: `vgpu run` ends that.
    Raises DeviceError where the driver or a device has no such limits, InputError where no device has a limit,
    ContainerError for a cgroup that the driver cannot limit.
    """
    check_devices(facts, devices)
    own = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if target.proc < 0 else -1
    try:
        leaf = leaf_of(own if own >= 0 else target.proc)
    finally:
        if own >= 0:
            os.close(own)
    return HeldCgroup(leaf.path, leaf.inode, library_of(facts), limits_of(facts, devices, own >= 0))


def held_processes(
    facts: HostFacts,
    pids: tuple[int, ...],
    limited: str,
    limits: dict[str, int],
    reserved: dict[str, int],
) -> tuple[HeldCgroup, ...]:
    """The cgroups of a slice, each once, and limits for them in bytes by UUID.

    `limited` is the one that was limited when the slice was made, as its entry has it. It need not be a leaf any
    more: a container can make cgroups in its own and move there, and its limit binds those too. The others are
    those of processes elsewhere; processes that end are left out. The driver keeps what is `reserved` free for the
    first one, which is the only one of a sound slice. Raises ContainerError, also where there is none, DeviceError.
    """
    inode, _, known = limited.partition(" ")
    found: dict[str, Leaf] = {known: Leaf(known, int(inode))} if known else {}
    for pid in pids:
        try:
            proc = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if known and f"{directory_of(proc)}/".startswith(f"{known}/"):
                continue
            leaf = leaf_of(proc)
            found[leaf.path] = leaf
        except ContainerError:
            if not _has_ended(proc):
                raise
        finally:
            os.close(proc)
    if not found:
        cause = "no such process"
        raise ContainerError(STEP, f"pid {pids[0]}" if pids else "", cause, "start it again if it has ended")
    library = library_of(facts)
    told: list[HeldCgroup] = []
    for path, leaf in found.items():
        soft = {} if told else reserved
        hard = tuple(MemoryLimit(uuid, soft.get(uuid, 0), max(limit, LEAST)) for uuid, limit in limits.items())
        told.append(HeldCgroup(path, leaf.inode, library, hard, path == known))
    return tuple(told)


def cgroup_with_id(pid: int, container: str) -> str:
    """The cgroup of a process's container, known by the id that engines put into its name, as an entry has it.

    "" if no name has it. Raises ContainerError, OSError.
    """
    with closing(os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as proc:
        path = named_after(container, directory_of(proc))
    return f"{os.stat(path).st_ino} {path}" if path else ""


def _has_ended(proc: int) -> bool:
    try:
        os.stat("stat", dir_fd=proc)
    except (FileNotFoundError, ProcessLookupError):
        return True
    return False


def check_devices(facts: HostFacts, devices: tuple[SliceDevice, ...]) -> None:
    """Raise DeviceError, InputError where the driver cannot limit the memory of these devices."""
    major = facts.driver_version.partition(".")[0]
    if not major.isdigit() or int(major) < SINCE:
        cause = f"has no memory limits by cgroup: driver {SINCE} is the first that has"
        raise DeviceError(STEP, f"driver {facts.driver_label}", cause, HINT)
    for device in devices:
        if ":" in device.index and not device.hidden:
            raise DeviceError(
                STEP, device.uuid, "a MIG device: the driver limits whole GPUs by cgroup", "use mig"
            )
    if not any(device.limit != NO_LIMIT and not device.hidden for device in devices):
        raise InputError(STEP, cause="no limit of memory is asked for", hint="ask for a size, like 10GiB")
    if in_user_namespace():
        raise ContainerError(
            STEP, cause="this is a user namespace", hint="only root of the host can: run as that"
        )


def limits_of(facts: HostFacts, devices: tuple[SliceDevice, ...], reserve: bool) -> tuple[MemoryLimit, ...]:
    """What the driver is to be told of each GPU; with `reserve`, to keep reservations free, too. Pure."""
    whole = {gpu.uuid for gpu in facts.gpus if not gpu.mig_enabled}
    return tuple(
        MemoryLimit(device.uuid, device.reserved if reserve else 0, max(device.limit, LEAST))
        for device in devices
        if device.limit != NO_LIMIT and device.uuid in whole
    )


def release(facts: HostFacts, leaf: Leaf, limits: tuple[MemoryLimit, ...], timeout: float) -> str:
    """End the reservation of a cgroup before it is removed: the driver would keep it. The problem; "": none."""
    told = tuple(limit.replace(soft=0) for limit in limits)
    try:
        _tell(HeldCgroup(leaf.path, leaf.inode, library_of(facts), told), timeout)
    except NvcError as error:
        return f"the driver still reserves memory for the cgroup {leaf.path}: {error}"
    return ""


def library_of(facts: HostFacts) -> str:
    """Where the host has NVML: a path without links, which root alone can change.

    To limit memory NVML needs root's rights and the host's paths: the probe cannot protect the host from it.
    Raises DeviceError.
    """
    for library in facts.libraries:
        if library.soname == NVML:
            return _of_root(facts.driver_root, library.path)
    raise DeviceError(STEP, facts.driver_root, f"the driver has no {NVML}", "install the driver's libraries")


def _of_root(root: str, path: str) -> str:
    """Where a file below the driver root is, links resolved. Raises DeviceError if not root alone can change it."""
    directory = fd = -1
    place = root.rstrip("/") + path
    try:
        directory = os.open(root, O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        fd = LinuxKernel().open_in_root(directory, path, O_PATH)
        real: str = os.readlink(f"/proc/self/fd/{fd}")
        above = real
        while above:
            place = above
            status = os.lstat(place)
            kept = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX  # others cannot rename in it
            if status.st_uid != 0 or status.st_mode & 0o022 and not kept:
                cause = "not root alone can change it, and NVML needs root's rights to limit memory"
                raise DeviceError(STEP, place, cause, "chown root it, and chmod go-w")
            above = "" if place == "/" else place.rpartition("/")[0] or "/"
    except OSError as error:
        raise DeviceError.of(STEP, place, error, "install the driver's libraries") from None
    finally:
        for opened in (directory, fd):
            if opened >= 0:
                os.close(opened)
    return real


def with_limits(cgroups: tuple[HeldCgroup, ...], timeout: float, apply: Callable[[], T]) -> T:
    """`apply`, after the driver was told to limit all of these cgroups. They are as before if any of that fails.

    Raises what `set_limits` and `apply` raise. The text of an NvcError names each limit that was not put back; for
    other exceptions such a limit raises DeviceError.
    """
    told: list[HeldCgroup] = []
    try:
        for held in cgroups:
            told.append(set_limits(held, timeout))
        return apply()
    except BaseException as error:
        problems = ", and ".join(filter(None, [put_back(before, timeout) for before in reversed(told)]))
        if not problems:
            raise
        if not isinstance(error, NvcError):
            raise DeviceError(STEP, cause=f"{type(error).__name__}, and {problems}", hint=LEFT_HINT) from error
        and_also(error, problems)
        raise


def set_limits(held: HeldCgroup, timeout: float) -> HeldCgroup:
    """Have the driver limit memory; what undoes that is returned.

    Raises DeviceError, ContainerError, InitializationError, DetectionError: nothing is changed then, or the text
    says what may be.
    """
    leaf = Leaf(held.path, held.inode)
    check_unchanged(leaf, held.divided)
    undone = _tell(held, timeout)
    try:
        check_unchanged(leaf, held.divided)  # else what was limited is another one, or one that processes can leave
    except NvcError as error:
        if _is_there(leaf):
            and_also(error, put_back(undone, timeout))
        else:  # NVML may have found either, so that nobody knows what to put back
            and_also(error, f"the cgroup there may have the limits that were asked for: {_text(held.limits)}")
        raise
    return undone


def _tell(held: HeldCgroup, timeout: float) -> HeldCgroup:
    """Tell the driver the limits of a cgroup; what undoes that is returned. Raises what `set_limits` raises."""
    probe = start_probe(-1, IDS_KEEP, 0, 0, limited(held.library, held.path, held.limits), timeout, True)
    try:
        answer = probe.result()
    except NvcError as error:  # it may have told the driver before it ended
        asked = _text(held.limits)
        and_also(error, f"the cgroup {held.path} may have the limits that were asked for: {asked}")
        raise
    finally:
        probe.close()
    try:
        before = parse_limits(answer, tuple(limit.uuid for limit in held.limits))
    except LimitsRefused as error:
        raise _refusal(held, error) from None
    old = tuple(limit.replace(soft=soft, hard=hard) for limit, (soft, hard) in zip(held.limits, before))
    return held.replace(limits=old)


def put_back(before: HeldCgroup, timeout: float) -> str:
    """Restore the limits of a cgroup, leaf or not: the problem, "" without one.

    One that is gone, or another one by now, has no limits of ours.
    """
    try:
        if _is_there(Leaf(before.path, before.inode)):
            _tell(before, timeout)
    except (OSError, NvcError) as error:
        return f"the cgroup {before.path} did not get its limits of before back ({_text(before.limits)}): {error}"
    return ""


def _is_there(leaf: Leaf) -> bool:
    """Whether a cgroup is where it was. Raises OSError."""
    try:
        return os.stat(leaf.path).st_ino == leaf.inode
    except FileNotFoundError:
        return False


def _text(limits: tuple[MemoryLimit, ...]) -> str:
    """Hard limits for people."""
    return ", ".join(
        f"{limit.uuid} {size_text(limit.hard) if limit.hard != NO_LIMIT else 'unlimited'}" for limit in limits
    )


def _refusal(held: HeldCgroup, error: LimitsRefused) -> NvcError:
    path = held.path
    if error.code in _MISSING:
        return DeviceError(STEP, cause=f"the driver has no memory limits by cgroup: {error}", hint=HINT)
    if error.code == _NOT_FOUND:
        hint = "has it ended? Else enable the controller dmem in cgroup.subtree_control of the cgroup above"
        return ContainerError(STEP, path, f"the driver does not find this cgroup: {error}", hint)
    if error.code == _NO_PERMISSION:
        return ContainerError(STEP, path, f"the driver refuses: {error}", "only root of the host can")
    return DeviceError(STEP, path, f"the driver refuses: {error}", HINT)
