"""What native/tracer/tracer.bpf.c tells: objects of the driver's resource manager, and news of them. Pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

from nvc.base.types import Iterable
from nvc.base.value import Value

NEW, FREED, CLIENT_FREED, TIMESLICE, KILLED, EXITED, MEDDLED, UNREADABLE, CROWDED, CONTESTED = range(1, 11)
NAMED, FULL = 11, 12
#: Words for the kinds of news: something was made; freed; a whole client was; a process set a timeslice; a guarded
#: process started or stopped channels, and was killed; a process is over; a process that is not guarded started or
#: stopped channels; a guarded process made a control call that could not be read; a process has 4096 objects, and
#: more of it are not seen; a process said that it made what another one has; a process that is killed
#: for it, or meddled, started this channel of a client; a process made an object, and the table is full.
WORDS = dict(enumerate((
    "new", "freed", "client-freed", "timeslice", "killed", "exited", "meddled", "unreadable", "crowded",
    "contested", "named", "full",
), NEW))  # fmt: skip

#: Classes (cl*.h).
CLIENT, DEVICE, SUBDEVICE, GROUP = 0x41, 0x80, 0x2080, 0xA06C
#: NV2080_ENGINE_TYPE_GR0 to GR7: graphics and compute.
COMPUTE_ENGINES = range(1, 9)

#: struct key, struct object and struct news of native/tracer/tracer.bpf.c.
KEY = struct.Struct("<II")
VALUE = struct.Struct("<QIIIiiI")
RECORD = struct.Struct("<IIII" + "QIIIiiI")


class Object(Value):
    """An object of the resource manager. `pid` is a process of the host's namespace.

    `serial` is when it was made, in ns of CLOCK_BOOTTIME. `engine` is the NV2080_ENGINE_TYPE of groups and
    channels, 0 where the process did not say.
    """

    pid: int
    client: int
    parent: int
    handle: int
    kind: int  # its class
    fd: int  # the descriptor, of that process, that it was made by
    device: int  # deviceId of class 0x80, else -1
    serial: int
    engine: int = 0

    @property
    def is_channel(self) -> bool:
        return self.kind & 0xFF == 0x6F

    @property
    def computes(self) -> bool:
        """Whether it is a group, or a channel, of a graphics or compute engine."""
        return self.engine in COMPUTE_ENGINES


class News(NamedTuple):
    """`object` is given with NEW alone. `slice`, with KILLED and NAMED, is the number that the process is guarded
    for, or 0. What needs no order, and came several times, is one with the number of `times`.
    """

    kind: int
    pid: int
    client: int
    handle: int
    object: Object | None = None
    slice: int = 0
    times: int = 1


def parse_news(data: bytes) -> News:
    """One record of the ring buffer: 48 bytes, else ValueError."""
    if len(data) != RECORD.size:
        raise ValueError(f"{len(data)} bytes are not a record")
    kind, pid, client, handle, *rest = RECORD.unpack(data)
    made = _object(client, handle, rest) if kind == NEW else None
    return News(kind, pid, client, handle, made, rest[2] if kind in (KILLED, NAMED) else 0)


def _object(client: int, handle: int, rest: Iterable[int]) -> Object:
    serial, pid, parent, kind, fd, device, engine = rest
    return Object(pid, client, parent, handle, kind, fd, device, serial, engine)


def parse_object(key: bytes, value: bytes) -> Object:
    """One entry of the table: 8 and 32 bytes, else ValueError."""
    if len(key) != KEY.size or len(value) != VALUE.size:
        raise ValueError(f"{len(key)} and {len(value)} bytes are not an entry")
    client, handle = KEY.unpack(key)
    return _object(client, handle, VALUE.unpack(value))


def living(objects: Iterable[Object], began: dict[int, int]) -> tuple[Object, ...]:
    """Objects of clients in which a living process has made something, and whose parents are there.

    Descriptors are passed on: a client outlives who made it. `began` is when each living process began, in ns of
    CLOCK_BOOTTIME: who made something before that was an earlier one with the same number.
    """
    table = {(each.client, each.handle): each for each in objects}
    clients = {
        each.client for each in table.values() if each.pid in began and each.serial >= began[each.pid]
    }

    def lives(each: Object) -> bool:
        root = table.get((each.client, each.client))
        if each.client not in clients or root is None or each.serial < root.serial:
            return False  # the last: it was in an earlier client of the same number
        for _ in range(8):  # channel, group, device, client: no honest chain is longer
            if each.kind == CLIENT:
                return True
            parent = table.get((each.client, each.parent))
            if parent is None:
                return False
            each = parent
        return False

    return tuple(each for each in table.values() if lives(each))
