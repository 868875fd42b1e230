"""Suspends slices that do nothing for as long as an operator says, and brings them back when they are used.

A slice works while the driver's log gives it time on a device. A suspended one is wanted once a thread of it waits
in the driver. If there is no room for it, another one makes room: whoever has done nothing for longest, else
whoever is there for longest. One that works stays for ten times as long as it takes to move the one that is
slowest to move, so nine tenths of the time go to work. Of several that are wanted, who has waited longest by its
weight comes back first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvc.base.value import Value

SECOND = 1_000_000_000
REST = SECOND  # without work, after which a slice makes room for one that is wanted
STAY_LEAST = 5 * SECOND  # that one which works is left on its devices
STAY = 10  # times what it took to move it
REFUSED = 60 * SECOND  # before a slice is tried again that could not be suspended


class Tenant(Value):
    """A slice on devices whose policy has idle-suspend. Times are nanoseconds of CLOCK_MONOTONIC."""

    key: str
    devices: tuple[str, ...]  # UUIDs
    weight: int
    idle_ns: int  # after which it is to be suspended
    work: int  # time of its devices in all
    suspended: bool
    wanted: bool = False  # suspended, and a thread of it waits
    room: bool = True  # suspended, and its devices have room for it
    moves: bool = False  # on its way


class Seen:
    """What is remembered of a slice."""

    __slots__ = ("work", "worked", "wanted", "came", "began", "out", "back", "refused")

    def __init__(self, work: int, now: int) -> None:
        self.work = work
        self.worked = now  # when it last did
        self.wanted = 0  # since when it is
        self.came = now  # to its devices
        self.began = 0  # to move
        self.out = self.back = 0  # nanoseconds that moving it took
        self.refused = 0


class Idle:
    """What to do next, by what is known of each slice."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}

    def plan(self, tenants: Iterable[Tenant], now: int) -> tuple[tuple[str, bool], ...]:
        """Slices to be moved, each with whether it is to leave its devices."""
        known = {one.key: one for one in tenants}
        self.seen = {key: seen for key, seen in self.seen.items() if key in known}
        for one in known.values():
            self._note(one, now)
        busy = {uuid for one in known.values() if one.moves for uuid in one.devices}
        found: list[tuple[str, bool]] = []
        wanted = [one for one in known.values() if one.wanted and not one.moves]
        for one in sorted(wanted, key=lambda one: (now - self.seen[one.key].wanted + 1) * one.weight, reverse=True):
            if busy.isdisjoint(one.devices):
                step = (one.key, False) if one.room else self._make_room(one, known, now)
                found += [step] if step else []
                busy.update(one.devices)  # who waits for longer is not overtaken
        for one in known.values():
            seen = self.seen[one.key]
            idle = not one.suspended and now - seen.worked >= one.idle_ns and self._may_try(seen, now)
            if idle and not one.moves and busy.isdisjoint(one.devices):
                found.append((one.key, True))
                busy.update(one.devices)
        for key, leave in found:
            self.seen[key].began = now
            if leave:
                self.seen[key].refused = now  # unless it goes
        return tuple(found)

    def _note(self, one: Tenant, now: int) -> None:
        seen = self.seen.setdefault(one.key, Seen(one.work, now))
        if one.work != seen.work or one.suspended:
            seen.work, seen.worked = one.work, now
        if seen.began and not one.moves:
            took, seen.began = now - seen.began, 0
            seen.out, seen.back = (took, seen.back) if one.suspended else (seen.out, took)
            seen.came = now
        if one.suspended:
            seen.refused = 0
        if not one.wanted:
            seen.wanted = 0
        elif not seen.wanted:
            seen.wanted = now

    def _make_room(self, wanted: Tenant, known: Mapping[str, Tenant], now: int) -> tuple[str, bool] | None:
        """Who leaves for it; None: nobody may yet."""
        near = [one for one in known.values() if not set(one.devices).isdisjoint(wanted.devices)]
        stay = max(STAY_LEAST, STAY * max(self.seen[one.key].out + self.seen[one.key].back for one in near))
        there = [(self.seen[one.key], one.key) for one in near if not one.suspended]
        able = [
            (now - seen.worked, now - seen.came, key)
            for seen, key in there
            if (now - seen.worked >= REST or now - seen.came >= stay) and self._may_try(seen, now)
        ]  # fmt: skip
        return (max(able)[2], True) if able else None

    @staticmethod
    def _may_try(seen: Seen, now: int) -> bool:
        return not seen.refused or now - seen.refused >= REFUSED

    def waited(self, key: str, now: int) -> int:
        """Nanoseconds for which a slice has been wanted."""
        seen = self.seen.get(key)
        return now - seen.wanted if seen is not None and seen.wanted else 0
