"""An entry of the catalogue that tries to have more memory than its slice, and what looks at it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from . import GIB, MIB
from .vgpushim import Process, Slice


class Look:
    """Looks at what the driver has given, and with `books` at what the slice's ledger has of it."""

    most: int = 0  # bytes beyond those before the program, of one device

    def __init__(self, slice_: Slice, taker: Taker, books: bool = True) -> None:
        self.slice, self.taker = slice_, taker
        self.books = books and not taker.forged
        self.before = [slice_.taken(device) for device in range(len(slice_.uuids))]

    def __call__(self, moving: bool = False) -> None:
        """`moving`: allocations are under way, so that driver and account are not of one moment."""
        for device, before in enumerate(self.before):
            taken = self.slice.taken(device) - before
            self.most = max(self.most, taken)
            assert taken <= self.taker.limit + self.taker.slack, (device, taken)
            if self.books and not moving:
                assert taken <= self.slice.used(device) + self.taker.slack, (device, taken)

    def counted(self, wanted: int) -> None:
        """The ledger must have this of the first device."""
        assert abs(self.slice.used() - wanted) <= self.slice.roughly


Program: TypeAlias = Callable[[Slice, Look], None]


@dataclass(frozen=True)
class Taker:
    """It runs in a slice with `limit` bytes of each device.

    At each of its calls of `look`, and at its end, the driver must not have given more than the limit, and the
    ledger not have less than the driver has given.
    """

    name: str
    tries: str
    program: Program
    limit: int = 2 * GIB
    forged: bool = False  # it writes to the ledger, so that only the limit is looked at
    gpu: bool = True  # it runs on a real GPU too

    @property
    def slack(self) -> int:
        """What the driver may give beyond the limit, in bytes."""
        return max(self.limit // 100, 16 * MIB)


def attempt(process: Process, *commands: str) -> list[int]:
    """The driver's answers; a refusal ends nothing."""
    return [process.code(command) for command in commands]
