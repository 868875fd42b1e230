"""For how much of the time slices may have work on a device, where they run at the same time. Pure.

Each of k slices that have work at one moment counts as having a k-th of the device then. A slice that would have
more than its part by weight is held back for some of the time, in which the others have the device for themselves.
What a slice leaves of its part goes to the others by weight, and a slice without work holds nobody back.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvc.base.value import Value
from nvc.model.slices.ledger import Budget
from nvc.slices.policy.entitlement import InForce, filled

WHOLE = 100  # percent: the slice is not held back
NEARLY = 0.97  # of the time: to hold back a slice for less is not worth a pause
IDLE = 0.02  # of the time, with work or waiting for some: a slice that has less has none
CLOSE = 0.002  # of the time: further rounds change less
ROUNDS = 40
#: By which the part of the time with work is smoothed: the newest reading counts for so much.
NEWEST = 0.4
#: Points and weights of a Gauss-Legendre quadrature on 0 to 1, exact for 16 slices.
POINTS = (
    (0.0198550718, 0.0506142681), (0.1016667613, 0.1111905172), (0.2372337950, 0.1568533229),
    (0.4082826788, 0.1813418917), (0.5917173212, 0.1813418917), (0.7627662050, 0.1568533229),
    (0.8983332387, 0.1111905172), (0.9801449282, 0.0506142681),
)  # fmt: skip


class Use(Value):
    """What a slice did on a device, as parts of the time."""

    busy: float = 0.0  # it had work on the device
    held: float = 0.0  # it had none since launches were held back


class _Together:
    """Slices of which each has work for a part of the time, by chance."""

    def __init__(self, busy: list[float]) -> None:
        self.busy = busy
        self._products = [weight for _, weight in POINTS]
        for part in busy:
            self._multiply(part, 1)

    def _multiply(self, part: float, power: int) -> None:
        for at, (point, _) in enumerate(POINTS):
            self._products[at] *= (1.0 - part * (1.0 - point)) ** power

    def share(self, number: int) -> float:
        """What a slice has of the device while it has work: the mean of 1 / k, k slices having work."""
        part = self.busy[number]
        return sum(product / (1.0 - part * (1.0 - point)) for product, (point, _) in zip(self._products, POINTS))

    def set(self, number: int, part: float) -> None:
        """From now on, it has work for this part of the time."""
        self._multiply(self.busy[number], -1)
        self._multiply(part, 1)
        self.busy[number] = part


def paces(force: InForce, uses: Mapping[str, Use]) -> dict[str, int]:
    """The percentage of the time for which each slice may have work, by key; {}: all have the same weight."""
    known = [uses.get(terms.key, Use()) for terms in force.weighed]
    now = _Together([use.busy if use.busy + use.held > IDLE else 0.0 for use in known])
    demands = [_demand(now, number, use.held) for number, use in enumerate(known)]
    limits = [min(demand, terms.cap) for demand, terms in zip(demands, force.weighed)]
    parts = filled(1.0, limits, [terms.weight for terms in force.weighed])
    # A slice with all that it wants is not held back.
    held = [number for number, part in enumerate(parts) if limits[number] - part > CLOSE]
    _fit(now, parts, held)
    return {
        terms.key: WHOLE if duty >= NEARLY or number not in held else max(round(duty * WHOLE), 1)
        for number, (terms, duty) in enumerate(zip(force.weighed, now.busy))
    }


def _demand(now: _Together, number: int, held: float) -> float:
    """The part of the time in which a slice would have work if it had the device for itself.

    The others make its work take longer, and not what it does between one piece of work and the next.
    """
    had, idle = now.busy[number] * now.share(number), max(1.0 - now.busy[number] - held, 0.0)
    return had / (had + idle) if had else 1.0 if held > IDLE else 0.0


def _fit(slices: _Together, parts: list[float], held: list[int]) -> None:
    """Have those who are held back work for as much of the time as gives them their parts of the device."""
    for number in held:
        slices.set(number, 1.0)
    for _ in range(ROUNDS):
        moved = 0.0
        for number in held:
            duty = min(1.0, parts[number] / slices.share(number))
            moved = max(moved, abs(duty - slices.busy[number]))
            slices.set(number, duty)
        if moved < CLOSE:
            break


class Reading(Value):
    """What is known of one slice on one device."""

    at: int  # nanoseconds of CLOCK_MONOTONIC
    budget: Budget
    use: Use | None = None  # smoothed; None: there was one reading only


def read(before: Reading | None, budget: Budget, at: int) -> Reading:
    """A new reading of a slice's budget. Its programs can write that: no more than the time that passed counts."""
    if before is None or at <= before.at:
        return Reading(at, budget)
    passed = at - before.at
    busy = min(max(budget.charged - before.budget.charged, 0) / passed, 1.0)
    held = min(max(budget.waited - before.budget.waited, 0) / passed, 1.0 - busy)
    old = before.use or Use(busy, held)
    return Reading(
        at, budget, Use(old.busy + (busy - old.busy) * NEWEST, old.held + (held - old.held) * NEWEST)
    )
