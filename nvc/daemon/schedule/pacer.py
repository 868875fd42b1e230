"""Keeps slices that run at the same time to their weights: reads what they had, and says how much they may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nvc.daemon.io.loop import SECOND, Loop
from nvc.daemon.schedule.slice_index import SliceIndex
from nvc.kernel.clocks import host_monotonic
from nvc.model.slices import quota
from nvc.model.slices.ledger import Budget
from nvc.slices.policy.entitlement import InForce
from nvc.slices.policy.pacing import Reading, Use, paces, read

PERIOD = SECOND // 4
HOLDS = SECOND  # beyond which nobody is held back if nvcd has ended


class Pacer:
    """All devices. It works by itself while slices of different weights run at the same time."""

    def __init__(self, loop: Loop, slices: SliceIndex, budgets: Callable[[str], tuple[Budget, ...]]) -> None:
        self.loop = loop
        self.slices = slices
        self.budgets = budgets
        self.paces: dict[tuple[bytes, str], int] = {}  # in force, in percent, by device and slice
        self._readings: dict[tuple[bytes, str], Reading] = {}
        self._works = False

    def begin(self, now: int) -> None:
        """Look from now on, if there is something to weigh."""
        if not self._works and any(force.weighed for force in self.slices.force.values()):
            self._works = True
            self._look(now)

    def _look(self, now: int) -> None:
        found: dict[tuple[bytes, str], int] = {}
        for raw, force in self.slices.force.items():
            if force.weighed:
                found.update(self._device(raw, force, now))
        for place in self.paces.keys() - found.keys():
            self._write(place, 0, 0)
        for place, percent in found.items():
            self._write(place, percent, now + HOLDS)
        self.paces = found
        self._readings = {place: one for place, one in self._readings.items() if place in found}
        self._works = bool(found)
        if self._works:
            self.loop.once(now + PERIOD, self._look)

    def _device(self, raw: bytes, force: InForce, now: int) -> Iterator[tuple[tuple[bytes, str], int]]:
        uses = {}
        for terms in force.weighed:
            place = raw, terms.key
            budget = self._budget(raw, terms.key)
            if budget is not None:
                self._readings[place] = read(self._readings.get(place), budget, now)
            known = self._readings.get(place)
            uses[terms.key] = (known.use if known is not None else None) or Use()
        return (((raw, key), percent) for key, percent in paces(force, uses).items())

    def _budget(self, raw: bytes, key: str) -> Budget | None:
        known = self.slices.by_key.get(key)
        found = self.budgets(key) if known is not None and raw in known.uuids else ()
        return found[known.uuids.index(raw)] if known is not None and found else None

    def _write(self, place: tuple[bytes, str], percent: int, until: int) -> None:
        raw, key = place
        known = self.slices.by_key.get(key)
        if known is None or raw not in known.uuids:
            return
        until = host_monotonic(until) if until else 0
        try:
            quota.set_pace(known.quota, known.uuids.index(raw), percent, until)
        except OSError as error:
            self.slices.say(f"{self.slices.whose(key)} is not kept to its weight: {error.strerror}")
