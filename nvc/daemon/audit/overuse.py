"""Finds slices that use more of a device's time than can be explained, by what NVML says. Pure.

What is held against it, in nanoseconds of each stretch between two samples:

    cap    what the cap allows; for slices that have one
    leases how long the slice held its lease, by nvcd's own clock; where leases are handed out and others share it
    ledger what the slice's ledger was charged; for slices with a cap or leases, since others are not charged

NVML tells the percentage of the time in which a kernel of the process was on the multiprocessors. That is sampled,
a kernel that runs cannot be interrupted, and the pauses between kernels that follow each other count as use. So a
slice may have a quarter more than is explained, and a tenth of the device. It may also have 10 us more for each
launch that its ledger counts, at most as much again as its cap. What is beyond that adds up, and what is below is
taken off again. Only a sum of several seconds counts: no single kernel that is shorter makes one.

A tenant can write what it likes to its ledger. So the ledger explains nothing that its cap or its leases do not.
"""

from __future__ import annotations

from nvc.value import Value

SECOND = 1_000_000_000
FACTOR = 1.25
MARGIN = 0.1  # of the device
#: Nanoseconds behind each launch: a bound, above the 6.7 us of an H100. The number of launches is the ledger's, so
#: all pauses together explain no more than the cap does.
PAUSE = 10_000
LONGEST = 5 * SECOND  # between two samples; of a longer time nothing is known
CAP, LEASES, LEDGER = "cap", "leases", "ledger"
#: Nanoseconds beyond what is explained. A ledger is charged when work has ended: late for a long kernel.
PATIENCE = {CAP: 6 * SECOND, LEASES: 6 * SECOND, LEDGER: 20 * SECOND}
BACK = SECOND  # it is over when so much less was used than was explained, at most


class UsageFigures(Value):
    """A slice on a device at one moment. All but `used` grow for as long as the slice lives, in nanoseconds."""

    used: float  # NVML's part of the time since the last moment
    cap: float  # a part of the device's time; 0: none
    charged: int  # by its ledger; -1: that cannot be read
    launches: int  # likewise, a number
    held: int  # its leases; -1: there are no leases


class Verdict(Value):
    """What a slice had of a device since it has used more than is explained, as parts of the time."""

    rule: str
    used: float
    explained: float


class _Sum:
    """One slice, one device, one rule."""

    __slots__ = ("beyond", "used", "explained", "time")

    def __init__(self) -> None:
        self.beyond = self.used = self.explained = self.time = 0.0

    def add(self, used: float, explained: float, allowed: float, time: int, patience: int) -> None:
        self.beyond = min(self.beyond + used - allowed, patience + BACK)
        if self.beyond <= 0:
            self.beyond = self.used = self.explained = self.time = 0.0
            return
        self.used += used
        self.explained += explained
        self.time += time


class Overuse:
    """All slices on all devices, by the slice's key and the device's UUID."""

    def __init__(self) -> None:
        self.before: dict[tuple[str, str], tuple[int, UsageFigures]] = {}
        self.sums: dict[tuple[str, str], dict[str, _Sum]] = {}

    def look(self, figures: dict[tuple[str, str], UsageFigures], now: int) -> None:
        """Figures of all slices of which NVML told something just now."""
        for place, new in figures.items():
            then, old = self.before.get(place, (now, new))
            if 0 < now - then <= LONGEST:
                self._add(place, old, new, now - then)
            self.before[place] = now, new

    def _add(self, place: tuple[str, str], old: UsageFigures, new: UsageFigures, time: int) -> None:
        sums = self.sums.setdefault(place, {})
        used = new.used * time
        for rule, explained, more in _explained(old, new, time):
            allowed = (explained + more) * FACTOR + MARGIN * time
            sums.setdefault(rule, _Sum()).add(used, explained, allowed, time, PATIENCE[rule])

    def keep(self, places: set[tuple[str, str]]) -> None:
        """Forget all others: they are gone, or NVML tells nothing of them any more."""
        for kept in (self.before, self.sums):
            for place in [place for place in kept if place not in places]:
                del kept[place]

    def begin_anew(self, place: tuple[str, str]) -> None:
        """After something was done about it."""
        self.sums.pop(place, None)

    def verdicts(self) -> dict[tuple[str, str], Verdict]:
        """The slices that use too much, by key and UUID, each with the first rule that it breaks."""
        found = {}
        for place, sums in self.sums.items():
            for rule in (CAP, LEASES, LEDGER):
                one = sums.get(rule)
                if one is not None and one.beyond > PATIENCE[rule]:
                    found[place] = Verdict(rule, one.used / one.time, one.explained / one.time)
                    break
        return found


def _explained(old: UsageFigures, new: UsageFigures, time: int) -> list[tuple[str, float, float]]:
    """For each rule that holds, what explains use in this time, and what is allowed on top of it."""
    found = []
    cap = max(old.cap, new.cap) * time if old.cap and new.cap else 0.0  # it may have been changed meanwhile
    leases = old.held >= 0 and new.held >= old.held
    ledger = old.charged >= 0 and new.charged >= 0
    pauses = float(max(new.launches - old.launches, 0) * PAUSE) if ledger else cap
    if cap:
        found.append((CAP, cap, min(pauses, cap)))
    if leases:
        found.append((LEASES, float(new.held - old.held), 0.0))
    if ledger and (cap or leases):
        found.append((LEDGER, float(max(new.charged - old.charged, 0)), min(pauses, float(time))))
    return found
