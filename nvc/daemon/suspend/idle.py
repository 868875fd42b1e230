"""Suspends slices that do nothing for as long as an operator says, and brings them back when they are used.

A slice works while the driver's log gives it time on a device. A suspended one is wanted once a thread of it waits
in the driver, another one once the driver had no room for an allocation. If there is no room for it, another slice
makes room: whoever has done nothing for longest, else whoever is there for longest. One that works stays for ten
times as long as it takes to move the one that is slowest to move, so nine tenths of the time go to work. Of several
that are wanted, who has waited longest by its weight is served first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvc.base.value import Value

SECOND = 1_000_000_000
REST = SECOND  # without work, after which a slice makes room for one that is wanted
STAY_LEAST = 5 * SECOND  # that one which works is left on its devices
STAY = 10  # times what it took to move it
REFUSED = 60 * SECOND  # before a slice is tried again that could not be suspended
AGAIN = STAY_LEAST  # between two moves for allocations of a slice, and two tries to bring one back
#: Steps: it does nothing; it makes room; it comes back; who waits is told to try, or give up.
RESTS, LEAVES, RETURNS, ANSWERED = "rests", "leaves", "returns", "answered"


class Tenant(Value):
    """A slice on devices whose policy has idle-suspend. Times are nanoseconds of CLOCK_MONOTONIC."""

    key: str
    devices: tuple[str, ...]  # UUIDs
    weight: int
    idle_ns: int  # after which it is to be suspended
    work: int  # time of its devices in all
    suspended: bool
    wanted: bool = False  # a thread of it waits: for its memory where it is suspended, else for an allocation
    room: bool = True  # its devices have what it waits for
    moves: bool = False  # on its way
    held: tuple[int, ...] = ()  # bytes of each device that it would give back; (): it cannot be suspended
    place: str = ""  # the device on which it waits for an allocation
    lacks: int = 0  # bytes that this device lacks for that

    @property
    def places(self) -> tuple[str, ...]:
        """The devices on which it waits."""
        return (self.place,) if self.place else self.devices

    def held_on(self, uuid: str) -> int:
        """The bytes of a device that it would give back."""
        return sum(count for each, count in zip(self.devices, self.held) if each == uuid)


class Seen:
    """What is remembered of a slice."""

    __slots__ = ("work", "worked", "wanted", "came", "began", "out", "back", "refused", "moved", "stuck")

    def __init__(self, work: int, now: int) -> None:
        self.work = work
        self.worked = now  # when it last did
        self.wanted = 0  # since when it is
        self.came = now  # to its devices
        self.began = 0  # to move
        self.out = self.back = 0  # nanoseconds that moving it took
        self.refused = 0
        self.moved = 0  # when somebody was last moved for an allocation of it
        self.stuck = 0  # when it was last to come back, and did not


class Idle:
    """What to do next, by what is known of each slice."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}

    def plan(self, tenants: Iterable[Tenant], now: int) -> tuple[tuple[str, str], ...]:
        """Slices, each with the step that is due for it."""
        known = {one.key: one for one in tenants}
        self.seen = {key: seen for key, seen in self.seen.items() if key in known}
        for one in known.values():
            self._note(one, now)
        busy = {uuid for one in known.values() if one.moves for uuid in one.devices}
        found: list[tuple[str, str]] = []
        wanted = [one for one in known.values() if one.wanted and not one.moves and not self._stuck(one.key, now)]
        for one in sorted(wanted, key=lambda one: (now - self.seen[one.key].wanted + 1) * one.weight, reverse=True):
            if busy.isdisjoint(one.places):
                steps, later = self._serve(one, known, now)
                found += steps
                if steps or later:
                    busy.update(one.places)  # who waits for longer is not overtaken
        for one in known.values():
            seen = self.seen[one.key]
            idle = not one.suspended and not one.wanted and any(one.held) and now - seen.worked >= one.idle_ns
            if idle and self._may_try(seen, now) and not one.moves and busy.isdisjoint(one.devices):
                found.append((one.key, RESTS))
                busy.update(one.devices)
        for key, step in found:
            seen = self.seen[key]
            if step == ANSWERED:
                seen.worked, seen.wanted = now, 0
                continue
            seen.began = now
            if step != RETURNS:
                seen.refused = now  # unless it goes
            else:
                seen.stuck = now  # unless it comes
        return tuple(found)

    def _note(self, one: Tenant, now: int) -> None:
        seen = self.seen.setdefault(one.key, Seen(one.work, now))
        if one.work != seen.work or one.suspended or not any(one.held):
            seen.work, seen.worked = one.work, now
        if seen.began and not one.moves:
            took, seen.began = now - seen.began, 0
            seen.out, seen.back = (took, seen.back) if one.suspended else (seen.out, took)
            seen.came = now
        if not one.suspended:
            seen.stuck = 0
        elif not one.moves:
            seen.refused = 0
        if not one.wanted:
            seen.wanted = 0
        elif not seen.wanted:
            seen.wanted = now

    def _serve(self, one: Tenant, known: Mapping[str, Tenant], now: int) -> tuple[list[tuple[str, str]], bool]:
        """The step for one that waits, and whether somebody can be moved for it later if there is none now."""
        near = [each for each in known.values() if not set(each.devices).isdisjoint(one.places)]
        others = [
            each for each in near
            if each.key != one.key and not each.suspended and any(map(each.held_on, one.places))
        ]  # fmt: skip
        able = [each for each in others if self._may_try(self.seen[each.key], now)]
        seen = self.seen[one.key]
        if one.place:
            if one.room or sum(each.held_on(one.place) for each in able) < one.lacks:
                return [(one.key, ANSWERED)], False
            if seen.moved and seen.wanted > seen.moved > now - AGAIN:
                return [], True
        elif one.room:
            return [(one.key, RETURNS)], False
        leaves = self._leaves(able, near, now)
        if leaves and one.place:
            seen.moved = now
        return leaves, bool(able)

    def _stuck(self, key: str, now: int) -> bool:
        """Whether it was to come back a moment ago, and did not: its processes may be frozen."""
        return 0 < self.seen[key].stuck > now - AGAIN

    def _leaves(self, others: Iterable[Tenant], near: Iterable[Tenant], now: int) -> list[tuple[str, str]]:
        """Which of `others` leaves; `near` says how long moving takes."""
        stay = max(STAY_LEAST, STAY * max(self.seen[one.key].out + self.seen[one.key].back for one in near))
        there = [(self.seen[one.key], one.key) for one in others]
        able = [
            (now - seen.worked, now - seen.came, key)
            for seen, key in there
            if now - seen.worked >= REST or now - seen.came >= stay
        ]  # fmt: skip
        return [(max(able)[2], LEAVES)] if able else []

    @staticmethod
    def _may_try(seen: Seen, now: int) -> bool:
        return not seen.refused or now - seen.refused >= REFUSED

    def waited(self, key: str, now: int) -> int:
        """Nanoseconds for which a slice has been wanted."""
        seen = self.seen.get(key)
        return now - seen.wanted if seen is not None and seen.wanted else 0
