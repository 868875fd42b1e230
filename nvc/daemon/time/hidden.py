"""Processes that had a GPU while the tracer knew no channels of them there: they have hidden them. Pure.

A thread that changes a call while the tracer reads it makes it say that a channel group was freed, or was not made.
The driver's log tells who had the GPU all the same. A process is judged for the time between two accounts in which
it had no group, and in which nothing of it came or went.
"""

from __future__ import annotations

from collections.abc import Iterable

from nvc.daemon.keeper.wire import Account

Place = tuple[str, int]  # a GPU and a process


class Hidden:
    """Takes accounts. Times are nanoseconds."""

    def __init__(self, least: int) -> None:
        """`least`: of a GPU's time between two accounts; less is an error of clocks."""
        self._least = least
        self._began = 0
        self._had: dict[Place, int] = {}
        self._touched: set[int] = set()
        self._times: dict[Place, int] = {}

    def touch(self, pids: Iterable[int]) -> None:
        """Something of these processes came or went, or is known: nothing is said of them at the next account."""
        self._touched.update(pids)

    def take(self, account: Account) -> list[tuple[str, int, int, int]]:
        """The GPU, the process, what it had there without a known group, and how often that was seen by now."""
        found = []
        had: dict[Place, int] = {}
        for device in account.devices:
            for pid, amount, _ in device.pids if device.logged else ():
                place = device.uuid, pid
                had[place] = amount
                before = self._had.get(place)
                known = account.began != self._began or before is None or pid in self._touched
                if not known and amount - (before or 0) >= self._least:
                    self._times[place] = self._times.get(place, 0) + 1
                    found.append((device.uuid, pid, amount - (before or 0), self._times[place]))
        self._began, self._had = account.began, had
        self._touched.clear()
        self._times = {place: times for place, times in self._times.items() if place in had}
        return found
