"""Who has how much of each device, and what still fits: for the device plugin, whose resources share GPUs. Pure.

kubelet counts each resource by itself. It does not know that a small and a large slice come from one GPU, nor
that a whole GPU is one that nobody has a slice of.
"""

from __future__ import annotations

from collections.abc import Iterable

from nvc.base.value import Value
from nvc.kubernetes.claims.devices import ALL_CORES, Device
from nvc.model.slices.sizes import size_text

#: Between a UUID and a number, in the id of a slice.
SEPARATOR = "::"
#: Ids of one resource: kubelet takes messages of 4 MiB, and one id has some 80 bytes.
IDS_MAX = 32768


class Size(Value):
    """What one device of a resource is."""

    resource: str  # nvidia.com/vgpu-small
    name: str  # small; "": all of a device
    limits: tuple[tuple[str, int], ...]  # UUID of each device that comes in it, and bytes of that
    cores: int = 0  # percent of its time; 0: no cap, so none is counted

    def bytes_of(self, uuid: str) -> int:
        """Bytes of a device; 0: it does not come in this size."""
        return dict(self.limits).get(uuid, 0)


class Held(Value):
    """What somebody has of one device."""

    uuid: str
    memory: int  # bytes
    cores: int
    whole: bool = False


class Free(Value):
    """What is left of one device."""

    memory: int
    cores: int
    untouched: bool  # nobody has any of it

    def fits(self, size: Size, uuid: str) -> int:
        """How many more of a size it has room for."""
        amount = size.bytes_of(uuid)
        if not size.name:
            return int(self.untouched)
        if not amount:
            return 0
        return min(self.memory // amount, self.cores // size.cores if size.cores else self.memory // amount)

    @property
    def text(self) -> str:
        return f"{size_text(self.memory)} and {self.cores}% of its time are free"


def uuid_of(id: str) -> str:
    """The device that an id is of."""
    return id.partition(SEPARATOR)[0]


def ids_of(size: Size, devices: tuple[Device, ...]) -> list[tuple[str, Device]]:
    """All ids of a resource with their devices. They stay the same as long as size and devices do."""
    found = []
    own = [device for device in devices if size.bytes_of(device.uuid)]
    for device in own:
        most = Free(device.room, ALL_CORES, True).fits(size, device.uuid)
        ids = [device.uuid]
        if size.name:
            ids = [f"{device.uuid}{SEPARATOR}{number}" for number in range(min(most, IDS_MAX // len(own)))]
        found += [(id, device) for id in ids]
    return found


def free_of(devices: tuple[Device, ...], held: Iterable[Held]) -> dict[str, Free]:
    """What is left of each device by UUID."""
    left = {device.uuid: Free(device.room, ALL_CORES, True) for device in devices}
    for one in held:
        free = left.get(one.uuid)
        if free is not None:
            memory = 0 if one.whole else max(free.memory - one.memory, 0)
            cores = 0 if one.whole else max(free.cores - one.cores, 0)
            left[one.uuid] = Free(memory, cores, False)
    return left


def held_by(size: Size, ids: Iterable[str]) -> list[Held]:
    """What ids of a resource hold."""
    return [Held(uuid_of(id), size.bytes_of(uuid_of(id)), size.cores, whole=not size.name) for id in ids]


def lacking(
    devices: tuple[Device, ...], wanted: Iterable[Held], others: list[Held], claims: list[Held]
) -> tuple[str, Free] | None:
    """The first device of a claim that has too little left beside others and claims, by UUID, and what is left.

    Only devices that `others` have a part of are looked at.
    """
    taken = [*others, *claims]
    shared = {one.uuid for one in others}
    for one in wanted:
        free = free_of(devices, taken).get(one.uuid)
        if one.uuid in shared and free is not None:
            if one.whole or one.memory > free.memory or one.cores > free.cores:
                return one.uuid, free
        taken.append(one)
    return None


def usable(
    size: Size, devices: tuple[Device, ...], used: set[str], left: dict[str, Free]
) -> dict[str, bool]:
    """For each id of a resource whether it can be had, or is in use: as many of the others as there is room for."""
    found = {}
    room = {uuid: free.fits(size, uuid) for uuid, free in left.items()}
    for id, device in ids_of(size, devices):
        if id in used:
            found[id] = True
            continue
        found[id] = room[device.uuid] > 0
        room[device.uuid] -= 1
    return found


def preferred(
    available: list[str], must: list[str], count: int, left: dict[str, Free], packed: bool
) -> list[str]:
    """`count` of the available ids with all of `must`, of different devices: a container has one slice of each.

    Packed: of devices that have least left, so that others stay whole. Otherwise of those that have most left.
    """
    chosen = list(must)[:count]
    by_device: dict[str, list[str]] = {}
    for id in available:
        if id not in chosen:
            by_device.setdefault(uuid_of(id), []).append(id)
    taken = {uuid_of(id) for id in chosen}

    def rank(uuid: str) -> tuple[bool, int, int]:
        free = left.get(uuid, Free(0, 0, False))
        order = free.memory if packed else -free.memory
        return uuid in taken, order, free.cores if packed else -free.cores

    for uuid in sorted(by_device, key=rank):
        if len(chosen) < count:
            chosen.append(by_device[uuid].pop(0))
    rest = [id for uuid in sorted(by_device, key=rank) for id in by_device[uuid]]
    return [*chosen, *rest][:count]
