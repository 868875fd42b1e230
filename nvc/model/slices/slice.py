"""Resolves a request for a slice to limits for each device of the container. Pure."""

from __future__ import annotations

from nvc.base.errors import DeviceError, InputError
from nvc.base.value import Value
from nvc.model.facts import Identity
from nvc.model.request import SLICE_FIELDS, Portion, Request, Size, Told
from nvc.model.selection import select
from nvc.model.slices.isolation import MIG, MPS
from nvc.model.slices.layout import CORES_UNCAPPED, NO_LIMIT, POLICY_NATIVE, WEIGHT
from nvc.model.slices.sizes import size_text
from nvc.model.slices.time_settings import (
    ALL,
    check_timing,
    check_together,
    default_policy,
    has_periods,
    time_document,
    time_settings_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from nvc.discovery.driver.compat import CompatLibrary
    from nvc.discovery.nvml.questions import MemoryLimit
    from nvc.model.facts import HostFacts, OuterSlice
    from nvc.model.request import Part, SliceRequest, TimeSetting, Timing
    from nvc.model.selection import Selection

    T = TypeVar("T", Size, TimeSetting)
    T_Timing = TypeVar("T_Timing", bound=Timing)

MIB = 1 << 20


class SliceDevice(Portion):
    """One device of a slice and its limits; amounts in bytes."""

    uuid: str
    index: str  # on the host: `0`, or `0:1` of a MIG device
    name: str
    memory: int  # all there is; 0 where NVML does not tell
    limit: int  # NO_LIMIT: all of it
    context_overhead: int = 0  # bytes that a process takes by its context alone
    module_overhead: int = 0  # and by its first module
    calibrated: bool = False  # that was measured on this host
    asked_policy: int = POLICY_NATIVE  # the same before the device's own policy, if it has one

    @property
    def hidden(self) -> bool:
        """Whether the slice may use nothing of it: the quota denies programs that change CUDA_VISIBLE_DEVICES."""
        return self.limit == 0

    def text(self) -> str:
        """The device and its limits, for people."""
        of = f" of {size_text(self.memory)}" if self.memory else ""
        share = f"all{of}" if self.limit == NO_LIMIT else f"{size_text(self.limit)}{of}"
        if (self.cores, self.weight, self.policy) != (CORES_UNCAPPED, WEIGHT, POLICY_NATIVE):
            share += f"; time: {time_settings_text(self)}"
        share += f"; {size_text(self.reserved)} reserved" if self.reserved else ""
        return f"{self.uuid}  {share}"


class ShadowLibrary(Value):
    """A library of the image that programs would load in place of the shim. The plan covers it with the shim."""

    path: str
    soname: str  # libcuda.so.1 or libnvidia-ml.so.1


class HeldCgroup(Value):
    """A cgroup for which the driver limits memory, and what it is told."""

    path: str  # directory on the host
    inode: int  # of that directory: the kernel's number of the cgroup
    library: str  # path of NVML on the host
    limits: tuple[MemoryLimit, ...]
    divided: bool = False  # the container may have made cgroups in it since it was limited first

    @property
    def name(self) -> str:
        """Inode and directory of the cgroup in one text, for the registry."""
        return f"{self.inode} {self.path}"


class Slice(Value):
    """A slice as the plan needs it: devices with limits, and files on the host and in the image."""

    devices: tuple[SliceDevice, ...]
    shim_directory: str
    shims: tuple[tuple[str, str, Identity], ...]  # SONAME, path on the host, identity
    quota: str  # path on the host
    shadows: tuple[ShadowLibrary, ...] = ()
    links: tuple[str, ...] = ()  # directories of shadow libraries: each gets a link to the private directory
    hidden: tuple[str, ...] = ()  # directories of CUDA forward-compatibility libraries
    uncounted: bool = False  # libraries that the shim does not see were asked for
    left_out: tuple[str, ...] = ()  # names of such libraries that are not given
    isolation: str = ""  # of SliceRequest.isolation
    mps: str = ""  # directory on the host with the pipes of its own MPS server
    mps_percent: int = 100  # of the device's threads
    server: str = ""  # UUID of the device whose slices share that server; "": it is this slice's own
    not_enforced: str = ""  # why its policies are not, where they need nvcd
    label: str = ""  # of SELinux, for the ledger
    compat: tuple[CompatLibrary, ...] = ()  # of the image; its libcuda stands in for the driver's
    outer: OuterSlice | None = None  # whose slice this one shares: nothing is made for it
    holds: str = ""  # the holds of its devices, sorted, with blanks between them
    held: HeldCgroup | None = None  # with isolation by the kernel
    ledger: str = ""  # directory on the host: the slice was made for a claim, before its containers

    def lines(self) -> list[str]:
        """The facts about the slice for people, one a line."""
        lines = [device.text() for device in self.devices]
        for library in self.compat:
            if library.soname == "libcuda.so.1":
                lines.append(f"with the image's {library.path}, for a newer CUDA than the driver's")
        if self.outer is not None:
            lines.append("shared with the container around it")
        elif self.left_out:
            lines.append(f"left out, since their memory cannot be counted: {', '.join(self.left_out)}")
        elif self.uncounted:
            lines.append("with libraries whose memory is not counted, as asked for")
        if self.isolation == MIG:
            lines.append("isolated by MIG: the smallest free MIG device that fits, chosen when the plan was made")
        if self.held is not None:
            lines.append(f"memory is limited by the kernel, too, for the cgroup {self.held.path}")
        if self.server:
            lines.append(f"shares the MPS server of {self.server} with other slices: a fault of one ends them all")
        if self.isolation == MPS:
            lines.append(f"isolated by an MPS server of its own, with {self.mps_percent}% of the threads")
        return lines

    def document(self) -> dict[str, Any]:
        """For programs; amounts in bytes."""
        return {
            "devices": [
                {
                    "uuid": device.uuid,
                    "memory": device.memory,
                    "limit": None if device.limit == NO_LIMIT else device.limit,
                    "reserved": device.reserved,
                    "contextOverhead": device.context_overhead,
                    "calibrated": device.calibrated,
                    **time_document(device),
                }
                for device in self.devices
            ],
            "shim": self.shim_directory,
            "uncounted": self.uncounted,
            "shared": self.outer is not None,
            "isolation": self.isolation or None,
            "leftOut": list(self.left_out),
        }


def resolve(facts: HostFacts, selection: Selection, wanted: SliceRequest) -> tuple[SliceDevice, ...]:
    """The devices of a container in the order of the request, each with its limits.

    A device without limits in the request is given whole, within the operator's maxima, which `bounded` applies to
    the parts of CDI devices.

    Raises InputError, which names the option, variable or device, for a value that does not suit its device or that
    the operator does not grant. Raises DeviceError for a selector of `wanted.devices` that matches nothing, and for
    a part of a device that is not there.
    """
    devices = devices_of(selection)
    sliced = _sliced(facts, wanted, devices)
    sizes = _placed(wanted.memory, wanted.memory_at, devices, sliced, "sizes")
    caps = _placed(wanted.cores, wanted.cores_at, devices, sliced, "caps")
    parts = {part.uuid: part for part in wanted.parts}
    missing = parts.keys() - {device.uuid for device in devices}
    if missing:
        raise DeviceError(min(missing), cause="no such device any more", hint="run `nvc-cli cdi refresh`")
    return tuple(
        bounded(device, parts[device.uuid], wanted)
        if device.uuid in parts
        else _granted_time(wanted, _limited(wanted, device, sizes.get(place)), caps.get(place))
        for place, device in enumerate(devices)
    )


def wrong_count(given: tuple[Size | TimeSetting, ...], what: str, devices: int) -> InputError:
    """The error for `given` values, called `what`, that are neither one nor as many as the devices."""
    cause = f"{len(given)} {what}, but the number of devices is {devices}"
    return InputError(given[0].name, cause=cause, hint="give one for all, or one for each device")


def _placed(
    given: tuple[T, ...],
    given_at: tuple[tuple[int, T], ...],
    devices: list[SliceDevice],
    sliced: list[int],
    what: str,
) -> dict[int, T]:
    """The value for each device that has one, by the device's place in the request."""
    if len(given) > 1 and len(given) != len(sliced):
        raise wrong_count(given, what, len(sliced))
    for place, value in given_at:
        if place >= len(devices):
            cause = f"the container has {len(devices)} devices, counted from 0"
            raise InputError(value.name, value.text, cause, "name one of them, or have it get more devices")
    found = {}
    if given:
        found = {place: given[number if len(given) > 1 else 0] for number, place in enumerate(sliced)}
    return {**found, **dict(given_at)}


def _limited(wanted: SliceRequest, device: SliceDevice, asked: Size | None) -> SliceDevice:
    """The device with its limit and its reservation. Raises InputError."""
    limit = _limit(wanted, device, asked)
    reserved = reservation(wanted.reserved, device, limit)
    return device.replace(limit=limit, reserved=reserved, **wanted.only(Told))


def reservation(asked: Size | None, device: SliceDevice, limit: int) -> int:
    """Bytes that a slice with this limit reserves of a device; 0 where nothing is asked for.

    Raises InputError for more than the limit, and where NVML does not tell the memory of the device.
    """
    if asked is None:
        return 0
    reserved = amount(asked, device)
    if reserved > limit:
        cause = f"more than the limit of {device.uuid}, {size_text(limit)}"
        raise InputError(asked.name, asked.text, cause, "ask for less")
    if not device.memory:
        cause = f"NVML does not tell the memory of {device.uuid}, so none can be reserved"
        raise InputError(asked.name, asked.text, cause, "leave the reservation out")
    return reserved


def _bounded(what: str) -> str:
    """The hint of a request that is above the operator's bound."""
    return f"ask for less: [nvc] vgpu-{what}-max in config.toml bounds it"


def _limit(wanted: SliceRequest, device: SliceDevice, asked: Size | None) -> int:
    """The memory limit of the slice on a device, in bytes."""
    most = granted(wanted.largest, device)
    if asked is None:
        return most  # whole, but nobody gets more than the operator grants
    limit = amount(asked, device)
    if limit > most:
        allowed = wanted.largest.text if wanted.largest else ""
        raise InputError(asked.name, asked.text, f"the operator grants {allowed}", _bounded("memory"))
    return limit


def _granted_time(wanted: SliceRequest, device: SliceDevice, asked: TimeSetting | None) -> SliceDevice:
    """The device with its part of the time, within what the operator grants."""
    cores, most = asked.value if asked else wanted.most_cores % ALL, wanted.most_cores or ALL
    if (cores or ALL) > most:
        assert asked is not None
        raise InputError(asked.name, asked.text, f"the operator grants {most}", _bounded("cores"))
    weight = wanted.weight
    if weight is not None and wanted.most_weight and weight.value > wanted.most_weight:
        raise InputError(
            weight.name, weight.text, f"the operator grants {wanted.most_weight}", _bounded("weight")
        )
    found = timed(device, wanted, cores, device.uuid)
    usual = wanted.usual_period if has_periods(cores, found.policy) else 0
    return found.replace(asked_policy=found.policy, period_us=found.period_us or usual)


def timed(old: T_Timing, wanted: SliceRequest, cores: int, where: str) -> T_Timing:
    """`old` with its part of the time: a cap, else 0, and what `wanted` says. Raises InputError, naming `where`."""
    if wanted.policy is None:
        policy = default_policy(cores, wanted.weight is not None)
    else:
        policy = wanted.policy.value
        check_together(cores, policy, wanted.policy.name, wanted.policy.text, where)
    return with_time(old, wanted, cores, policy, where)


def with_time(old: T_Timing, wanted: SliceRequest, cores: int, policy: int, where: str) -> T_Timing:
    """`old` with this cap and policy, and what else `wanted` says of time. Raises InputError, naming `where`."""
    check_timing(wanted, cores, policy, where)
    given = {row.timing: getattr(wanted, row.name) for row in SLICE_FIELDS if row.timing}
    values = {name: setting.value for name, setting in given.items() if setting is not None}
    return old.replace(**values, cores=cores, policy=policy)


def bounded(device: SliceDevice, part: Part, wanted: SliceRequest) -> SliceDevice:
    """The device with the limits of `part`. Raises InputError for more than the operator grants in `wanted`."""
    if part.limit > granted(wanted.largest, device):
        allowed = wanted.largest.text if wanted.largest else ""
        raise _too_much(device, "all of it" if part.limit == NO_LIMIT else size_text(part.limit), allowed)
    cores, policy = part.cores, part.policy
    if cores > (wanted.most_cores or ALL):
        raise _too_much(device, f"{cores}% of its time", f"{wanted.most_cores}%")
    if not cores and wanted.most_cores % ALL:
        cores = wanted.most_cores
        policy = default_policy(cores, False) if policy == POLICY_NATIVE else policy
    if wanted.most_weight and part.weight > wanted.most_weight:
        raise _too_much(device, f"a weight of {part.weight}", str(wanted.most_weight))
    if part.reserved > part.limit:
        raise InputError("make a slice", device.uuid, "more is reserved than the limit", "ask for less")
    period_us = (part.period_us or wanted.usual_period) if has_periods(cores, policy) else 0
    kept = part.replace(cores=cores, policy=policy, period_us=period_us)
    return device.replace(limit=part.limit, asked_policy=policy, **kept.only(Portion))


def _too_much(device: SliceDevice, what: str, allowed: str) -> InputError:
    return InputError("make a slice", device.uuid, f"{what} is asked for, the operator grants {allowed}",
                      "ask for a smaller size")  # fmt: skip


def granted(largest: Size | None, device: SliceDevice) -> int:
    """The operator's maximum for a device, in bytes; NO_LIMIT where it does not limit the device."""
    if largest is None or not largest.part and device.memory and largest.bytes >= device.memory:
        return NO_LIMIT
    return amount(largest, device)


def amount(size: Size, device: SliceDevice) -> int:
    """`size` in bytes of `device`, at least 1 MiB. Raises InputError for more than the device has."""
    if not size.part:
        if device.memory and size.bytes > device.memory:
            raise InputError(
                size.name, size.text, f"{device.uuid} has {device.memory // MIB} MiB", "ask for less"
            )  # fmt: skip
        return size.bytes
    if not device.memory:
        raise InputError(
            size.name, size.text, f"NVML does not tell the memory of {device.uuid}", "write a size, like 10GiB"
        )  # fmt: skip
    return max(device.memory * size.part // size.whole // MIB * MIB, MIB)


def shared_slice(facts: HostFacts) -> Slice:
    """The slice of a container inside one that has a slice: the outer slice, shared."""
    assert facts.outer is not None
    root = facts.driver_root.rstrip("/")
    sonames = {library.soname for library in facts.outer.real}
    shims = tuple(
        (library.soname, root + library.path, library.identity)
        for library in facts.libraries
        if library.soname in sonames
    )
    return Slice(
        (), library_directory(facts), shims, root + facts.outer.quota, uncounted=True,
        outer=facts.outer,
    )  # fmt: skip


def library_directory(facts: HostFacts) -> str:
    """The directory of libcuda in the driver root, else of libnvidia-ml; "" without either."""
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        for library in facts.libraries:
            if library.soname == soname:
                return library.path[: library.path.rindex("/")]
    return ""


def devices_of(selection: Selection) -> list[SliceDevice]:
    """The devices of a selection, unlimited: whole GPUs, or the MIG devices of a GPU in its place."""
    found = []
    for gpu in selection.gpus:
        parts = [mig for parent, mig in selection.mig if parent.index == gpu.index]
        for mig in parts:
            index = f"{gpu.index}:{mig.index}"
            found.append(SliceDevice(mig.uuid, index, gpu.name, mig.memory * MIB, NO_LIMIT))
        if not parts:
            found.append(SliceDevice(gpu.uuid, str(gpu.index), gpu.name, gpu.memory * MIB, NO_LIMIT))
    return found


def _sliced(facts: HostFacts, wanted: SliceRequest, devices: list[SliceDevice]) -> list[int]:
    """The places of the devices that `wanted.memory` is for."""
    if not wanted.devices:
        return list(range(len(devices)))
    chosen = {device.uuid for device in devices_of(select(facts, Request(devices=wanted.devices)))}
    missing = chosen - {device.uuid for device in devices}
    if missing:
        raise DeviceError("make a slice", min(missing), "not a device of this container")
    return [place for place, device in enumerate(devices) if device.uuid in chosen]
