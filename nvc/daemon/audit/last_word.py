"""Reads from a slice's ledger what a process last said of its work, also once it has ended.

The tenant can write anything there.
"""

from __future__ import annotations

import os

from nvc.slices.model import layout
from nvc.slices.model.ledger import LedgerError
from nvc.value import Value


class Place(Value):
    """The slot of a process."""

    slot: int
    pid: int  # in the container's pid namespace
    generation: int


class Word(Value):
    """What a process last said of its work on a device."""

    seen: int  # when: nanoseconds of the host's CLOCK_MONOTONIC
    unfinished: bool | None  # None: another process has closed its account, and charged for what was unfinished


def place_of(fd: int, pid: int) -> Place | None:
    """The last slot that the process of this number has claimed. Raises OSError, LedgerError."""
    data = os.pread(fd, layout.SLOTS * layout.SLOT_HEADER.size, layout.LEDGER_HEADER.size)
    if len(data) < layout.SLOTS * layout.SLOT_HEADER.size:
        raise LedgerError("read ledger", "", "cut short")
    found, latest = None, 0
    for slot, (owner, generation, claimed, _) in enumerate(layout.SLOT_HEADER.iter_unpack(data)):
        if owner == pid and claimed >= latest:
            found, latest = Place(slot, pid, generation), claimed
    return found


def last_word(fd: int, place: Place, device: int) -> Word:
    """What the process that had this slot last said of its work on a device. Raises OSError, LedgerError."""
    header = layout.LEDGER_HEADER.size + place.slot * layout.SLOT_HEADER.size
    interval = layout.INTERVALS_OFFSET + (device * layout.SLOTS + place.slot) * layout.INTERVAL.size
    words = os.pread(fd, layout.INTERVAL.size, interval)
    slot = os.pread(fd, layout.SLOT_HEADER.size, header)
    if len(words) < layout.INTERVAL.size or len(slot) < layout.SLOT_HEADER.size:
        raise LedgerError("read ledger", "", "cut short")
    since, seen = layout.INTERVAL.unpack(words)
    pid, generation = layout.SLOT_HEADER.unpack(slot)[:2]
    if (pid, generation) == (place.pid, place.generation):
        return Word(seen, since != 0)
    return Word(seen, None if since == 0 else False)
