"""Sizes of slices that an operator has defined, and what of a device each is. Pure."""

from __future__ import annotations

from nvc.cdi.hookspec import OPTION
from nvc.errors import InputError
from nvc.request import Part, Request, Size, SliceRequest
from nvc.selection import select
from nvc.slices.model.layout import CORES_UNCAPPED, NO_LIMIT, POLICY_NATIVE, WEIGHT
from nvc.slices.model.policy import POLICIES
from nvc.slices.model.shares import default_policy
from nvc.slices.model.sizes import parse_number, parse_size
from nvc.slices.model.slice import SliceDevice, amount, bounded, devices_of
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.config import Config
    from nvc.model import HostFacts, Identity

#: The class of devices that are slices: nvidia.com/vgpu.
CLASS = "vgpu"
_LARGEST = 1 << 50  # bytes
_IN_HOLD = frozenset("0123456789abcdefABCDEF-")


class SliceSize(Value):
    """One table [[nvc.vgpu]]."""

    name: str
    memory: Size
    devices: tuple[str, ...] = ("all",)  # selectors of the devices that come in this size
    cores: int = CORES_UNCAPPED
    weight: int = WEIGHT
    policy: int = POLICY_NATIVE
    hold: str = ""  # of Part


class Slicing(Value):
    """What a document of slices is made of, beside the host's facts."""

    sizes: tuple[SliceSize, ...]
    shims: tuple[tuple[str, str, Identity], ...]  # SONAME, path on the host, identity
    uncounted: bool = False  # with libraries whose memory is not counted
    bounds: SliceRequest = SliceRequest()  # what the operator grants at most


def sizes_of(config: Config) -> tuple[SliceSize, ...]:
    """The sizes that the configuration defines."""
    found = []
    for name, text, devices, cores, weight, policy in config.vgpu_devices:
        memory = parse_size(f"[[nvc.vgpu]] {name}", text)
        number = POLICIES.index(policy) if policy else default_policy(cores, weight != WEIGHT)
        found.append(SliceSize(name, memory, devices, cores, weight, number))
    return tuple(found)


def sliced(facts: HostFacts, slicing: Slicing) -> dict[str, list[tuple[str, SliceDevice]]]:
    """For each device by UUID: the names of its sizes, and the device with the size's limit.

    A size for `all` devices leaves out those that are too small for it. Raises InputError for one that a device
    which was named has not, or that is more than anybody is to get; DeviceError for an unknown device.
    """
    found: dict[str, list[tuple[str, SliceDevice]]] = {}
    for size in slicing.sizes:
        fits = 0
        problem = None
        for device in devices_of(select(facts, Request(devices=size.devices))):
            try:
                limit = amount(size.memory, device)
            except InputError as error:
                if size.devices != ("all",):
                    raise
                problem = error
                continue
            fits += 1
            part = Part(device.uuid, limit, size.cores, size.weight, size.policy, size.hold)
            found.setdefault(device.uuid, []).append((size.name, bounded(device, part, slicing.bounds)))
        if problem is not None and not fits:
            raise problem
    return found


def written(device: SliceDevice | Part) -> str:
    """A slice of a device as the hook's argument."""
    hold = f",{device.hold}" if device.hold else ""
    return f"{device.uuid}={device.limit},{device.cores},{device.weight},{device.policy}{hold}"


def parsed(text: str) -> Part:
    """The slice of a device that an argument names. Raises InputError."""
    option = f"--{OPTION}"
    uuid, equals, rest = text[:200].partition("=")
    parts = rest.split(",")
    hold = parts.pop() if len(parts) == 5 else ""
    if not uuid or not equals or len(parts) != 4 or not _IN_HOLD.issuperset(hold):
        raise InputError(option, text[:80], "want UUID=BYTES,CORES,WEIGHT,POLICY[,HOLD]")
    limit = NO_LIMIT if parts[0] == str(NO_LIMIT) else parse_number(option, parts[0], 1 << 20, _LARGEST)
    cores, weight = parse_number(option, parts[1], 0, 100), parse_number(option, parts[2], 1, 1 << 16)
    return Part(uuid, limit, cores, weight, parse_number(option, parts[3], 0, len(POLICIES) - 1), hold)
