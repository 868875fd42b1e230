"""The state file that the processes of a simulated driver share: its layout, its creation, a look into it.

The layout is native/simdriver/common/state.h's; a test compares both.
"""

from __future__ import annotations

import fcntl
import os
import struct

from nvc.base.value import Value

MAGIC = b"nvcsim01"
VERSION = 4
SLOTS = 1024
USES = 32
PARTITIONS = 32 * 9
EXPORTS = 512
HISTORY = 16
LIMITS = 256
GROUPS = 1024
CHANGES = 16
REGIONS = 16384

_HEADER = struct.Struct("<8sIIQII32x")
_PARTITION_SIZE = 32 + SLOTS // 4 + 16 * HISTORY
_EXPORT = struct.Struct(f"<QQII{SLOTS // 8}s")
_SLOT_HEAD = struct.Struct("<QII16x")
_LIMIT_SIZE = 512
_USE = struct.Struct("<IIQQQ32x")
_SLOT_SIZE = _SLOT_HEAD.size + USES * _USE.size
_EXPORTS_AT = _HEADER.size + PARTITIONS * _PARTITION_SIZE
_SLOTS_AT = _EXPORTS_AT + EXPORTS * _EXPORT.size
_RM_AT = _SLOTS_AT + SLOTS * _SLOT_SIZE + LIMITS * _LIMIT_SIZE
GROUP = struct.Struct(f"<QIIIIIIII{CHANGES}Q")
GROUPS_AT = _RM_AT + 16 + 4 * PARTITIONS
SIZE = GROUPS_AT + GROUPS * GROUP.size + REGIONS * 32

_LOCK_SLOTS = 0x1000
_FLOCK = struct.Struct("hhqqi4x")


class Usage(Value):
    """What one living process has of one partition."""

    pid: int  # in its own namespace
    partition: int  # gpu * 9, or gpu * 9 + 1 + MIG device
    bytes: int
    managed: int  # bytes of resident managed memory
    busy_ns: int


def empty(pid_namespace: int) -> bytes:
    """The first bytes of a fresh state; the rest of its SIZE bytes is zero."""
    return _HEADER.pack(MAGIC, VERSION, SIZE, pid_namespace, 0, 0)


def _lives(fd: int, slot: int) -> bool:
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _LOCK_SLOTS + 2 * slot, 1, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, query))[0]
    return kind != fcntl.F_UNLCK


def usage(path: str) -> list[Usage]:
    """Who uses what now. A foreign file, or one that is too short, has no users. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        # Read, not mapped: whoever may use the simulated GPUs may cut the file off meanwhile.
        data = os.pread(fd, SIZE, 0)
        return _users(data, fd) if len(data) == SIZE else []
    finally:
        os.close(fd)


def _users(data: bytes, fd: int) -> list[Usage]:
    magic, version, size, _, slots_used, exports_used = _HEADER.unpack_from(data, 0)
    if (magic, version, size) != (MAGIC, VERSION, SIZE):
        return []
    living = {slot for slot in range(min(slots_used, SLOTS)) if _lives(fd, slot)}
    exported = _exported(data, min(exports_used, EXPORTS), living)
    found: list[Usage] = []
    for slot in range(min(slots_used, SLOTS)):
        start = _SLOTS_AT + slot * _SLOT_SIZE
        token, pid, _ = _SLOT_HEAD.unpack_from(data, start)
        if not token or slot not in living:
            continue
        uses = data[start + _SLOT_HEAD.size : start + _SLOT_SIZE]
        for number, _, taken, managed, busy in _USE.iter_unpack(uses):
            if number:
                taken += exported.get((slot, number - 1), 0)
                found.append(Usage(pid, number - 1, taken, managed, busy))
    return found


def _exported(data: bytes, count: int, living: set[int]) -> dict[tuple[int, int], int]:
    """Bytes that processes share, by (slot that they are shown under, partition): one that lives and holds them."""
    found: dict[tuple[int, int], int] = {}
    for index in range(count):
        place = _EXPORTS_AT + index * _EXPORT.size
        identity, size, partition, owner, bits = _EXPORT.unpack_from(data, place)
        if identity and owner not in living:
            holders = int.from_bytes(bits, "little")
            owner = next((slot for slot in sorted(living) if holders >> slot & 1), owner)
        if identity:
            found[owner, partition] = found.get((owner, partition), 0) + size
    return found
