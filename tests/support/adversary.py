"""An entry of the catalogue of hostile programs: a name, a program, and the limit that must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from support.vgpushim import GIB, MIB, Slice


@dataclass(frozen=True)
class Taker:
    """A program that tries to have more memory than its slice.

    It runs in a slice with `limit` bytes of each device. At each of its calls of `look`, and at its end, the
    simulated driver's own count must not be above the limit, and the ledger not below that count.
    """

    name: str
    program: Callable[[Slice, Callable[[], None]], None]
    limit: int = 2 * GIB

    @property
    def slack(self) -> int:
        """What the driver may give beyond the limit, in bytes."""
        return max(self.limit // 100, 16 * MIB)
