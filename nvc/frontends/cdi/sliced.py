"""Sizes of slices that an operator has defined, and what of a device each is. Pure."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.value import Value
from nvc.frontends.cdi.hookspec import OPTION
from nvc.model.request import SLICE_FIELDS, TEXTS, Part, Portion, Request, Size, SliceRequest, fields_by
from nvc.model.selection import select
from nvc.model.slices.isolation import KERNEL
from nvc.model.slices.layout import CORES_UNCAPPED, NO_LIMIT
from nvc.model.slices.policy import POLICIES
from nvc.model.slices.sizes import parse_number
from nvc.model.slices.slice import SliceDevice, amount, bounded, devices_of, reservation, timed
from nvc.model.slices.time_settings import KINDS, PERIOD_US, WEIGHT_MAX, asked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.model.facts import HostFacts, Identity
    from nvc.request.config import Config

#: The class of devices that are slices: nvidia.com/vgpu.
CLASS = "vgpu"
_LARGEST = 1 << 50  # bytes
_LONGEST = 500  # characters of an argument
_UNCOUNTED = "uncounted"
#: Numbers of a slice that an argument has by name: the word, and the field of Portion.
_WORDS = {row.timing or row.name: row.key for row in SLICE_FIELDS}
_PLACED = ("cores", "weight", "policy", "hold", "isolation", "uncounted", *TEXTS)
_NAMED = {_WORDS.get(name, name): name for name in Portion._fields if name not in _PLACED}
_RANGES = {"request": (1, _LARGEST), "period": PERIOD_US}  # others have 32 bits
_IN_HOLD = frozenset("0123456789abcdefABCDEF-")


class SliceSize(Portion):
    """One table [[nvc.vgpu]]. What it reserves depends on the device."""

    name: str
    memory: Size
    devices: tuple[str, ...] = ("all",)  # selectors of the devices that come in this size
    request: Size | None = None  # what no other slice can reserve of each device; at most `memory`


class Slicing(Value):
    """What a document of slices is made of, beside the host's facts."""

    sizes: tuple[SliceSize, ...]
    shims: tuple[tuple[str, str, Identity], ...]  # SONAME, path on the host, identity
    uncounted: bool = False  # with libraries whose memory is not counted
    bounds: SliceRequest = SliceRequest()  # what the operator grants at most
    parts: tuple[tuple[str, Part], ...] = ()  # of claims and pods: in place of a size, a name and what it is


def sizes_of(config: Config) -> tuple[SliceSize, ...]:
    """The sizes that the configuration defines."""
    found = []
    keys = {row.name: f": {row.key}" for row in fields_by("size")} | {"memory": ""}
    for name, devices, given in config.vgpu_devices:
        texts = {field: (f"[[nvc.vgpu]] {name}{keys[field]}", text) for field, text in given}
        wanted = asked(texts, SliceRequest(isolation=config.vgpu_isolation))
        cores = wanted.cores[0].value if wanted.cores else CORES_UNCAPPED
        size = SliceSize(name, wanted.memory[0], devices, wanted.reserved, isolation=wanted.isolation)
        found.append(timed(size, wanted, cores, name))
    return tuple(found)


def sliced(facts: HostFacts, slicing: Slicing) -> dict[str, list[tuple[str, SliceDevice]]]:
    """For each device by UUID: the names of its sizes and parts, and the device with the limit of each.

    A size for `all` devices leaves out those that are too small, and with isolation by the kernel MIG devices.

    Raises InputError for one that a device which was named has not, for one above what the operator grants, and for
    a request above its limit. Raises DeviceError for an unknown device, and where the driver cannot isolate.
    """
    found: dict[str, list[tuple[str, SliceDevice]]] = {}
    for name, part in slicing.parts:
        (device,) = devices_of(select(facts, Request(devices=(part.uuid,))))
        amount(Size("memory", str(part.limit), part.limit), device)
        _check_isolation(facts, part.isolation, device.replace(limit=part.limit))
        found.setdefault(device.uuid, []).append((name, bounded(device, part, slicing.bounds)))
    for size in slicing.sizes:
        fits = 0
        problem = None
        for device in devices_of(select(facts, Request(devices=size.devices))):
            try:
                limit = amount(size.memory, device)
                _check_isolation(facts, size.isolation, device.replace(limit=limit))
            except InputError as error:
                if size.devices != ("all",):
                    raise
                problem = error
                continue
            reserved = reservation(size.request, device, limit)
            fits += 1
            part = Part(device.uuid, limit, **size.replace(reserved=reserved).only(Portion))
            found.setdefault(device.uuid, []).append((size.name, bounded(device, part, slicing.bounds)))
        if problem is not None and not fits:
            raise problem
    return found


def _check_isolation(facts: HostFacts, isolation: str, device: SliceDevice) -> None:
    """Raise DeviceError where the driver cannot limit a cgroup, InputError for a MIG device."""
    if not isolation:
        return
    from nvc.apply.cgroup.leaf import STEP
    from nvc.slices.make.kernel_limits import check_devices

    if ":" in device.index:
        raise InputError(
            STEP, device.uuid, "a MIG device: the driver limits whole GPUs by cgroup", "use mig"
        )
    check_devices(facts, (device,))


def written(device: SliceDevice | Part) -> str:
    """A slice of a device as the hook's argument."""
    named = [f"{word}={number}" for word, name in _NAMED.items() if (number := getattr(device, name))]
    named += [f"{name}={text}" for name in TEXTS if (text := getattr(device, name))]
    words = (device.hold, *named, device.isolation, _UNCOUNTED if device.uncounted else "")
    more = "".join(f",{word}" for word in words if word)
    return f"{device.uuid}={device.limit},{device.cores},{device.weight},{device.policy}{more}"


def parsed(text: str) -> Part:
    """The slice of a device that an argument names. Raises InputError."""
    option = f"--{OPTION}"
    uuid, equals, rest = text[:_LONGEST].partition("=")
    parts = rest.split(",")
    found: dict[str, Any] = {}
    for word in parts[4:]:
        name, given, number = word.partition("=")
        if given and name in _NAMED:
            low, high = _RANGES.get(name, (1, (1 << 32) - 1))
            found[_NAMED[name]] = parse_number(option, number, low, high) if number != "0" else 0
        elif given and name in TEXTS:
            found[name] = KINDS[TEXTS[name].kind](option, number)
        elif word in (KERNEL, _UNCOUNTED):
            found |= {"isolation": KERNEL} if word == KERNEL else {"uncounted": True}
        elif "hold" not in found and word and _IN_HOLD.issuperset(word):
            found["hold"] = word
        else:
            equals = ""
    if not uuid or not equals or len(parts) < 4:
        numbers = "".join(f"[,{word}=NUMBER]" for word in _NAMED)
        texts = "".join(f"[,{name}=TEXT]" for name in TEXTS)
        wanted = f"want UUID=BYTES,CORES,WEIGHT,POLICY[,HOLD]{numbers}{texts}[,{KERNEL}][,{_UNCOUNTED}]"
        raise InputError(option, text[:80], wanted)
    limit = NO_LIMIT if parts[0] == str(NO_LIMIT) else parse_number(option, parts[0], 1 << 20, _LARGEST)
    cores, weight = parse_number(option, parts[1], 0, 100), parse_number(option, parts[2], 1, WEIGHT_MAX)
    policy = parse_number(option, parts[3], 0, len(POLICIES) - 1)
    return Part(uuid, limit, cores=cores, weight=weight, policy=policy, **found)
