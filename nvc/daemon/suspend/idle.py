"""Suspends slices that do nothing for as long as an operator says, and brings them back when they are used.

A slice works while the driver's log gives it time on a device. A suspended one is wanted once a thread of it waits
in the driver, another one once the driver had no room for an allocation. Of several that are wanted, who has waited
longest by its weight is served first. Free memory is kept for it, and who makes room leaves at once, while others
leave or come back. On each device one comes back at a time.

Room is made by whoever has done nothing for longest, else by whoever is there for longest. The lightest that works
stays for ten times as long as it takes to move the one that is slowest to move, so nine tenths of the time go to
work. Heavier ones stay for longer, in proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
    suspended: bool  # or on its way there or back
    wanted: bool = False  # a thread of it waits: for its memory where it is suspended, else for an allocation
    needs: tuple[int, ...] = ()  # bytes of each device for which it waits
    moves: bool = False  # on its way, or to be brought back after a call for it hung
    leaves: bool = False
    comes: bool = False
    held: tuple[int, ...] = ()  # bytes of each device that it gives back if it leaves; (): it cannot be suspended

    @property
    def wants(self) -> dict[str, int]:
        """The bytes for which it waits, of those devices on which it does."""
        return {uuid: count for uuid, count in zip(self.devices, self.needs) if count}

    @property
    def gives(self) -> dict[str, int]:
        """The bytes of each device that it gives back if it leaves."""
        return dict(zip(self.devices, self.held))


@dataclass(eq=False)
class Seen:
    """What is remembered of a slice."""

    work: int
    worked: int  # when it last did
    came: int  # to its devices
    wanted: int = 0  # since when it is
    began: int = 0  # to move
    out: int = 0  # nanoseconds that moving it took
    back: int = 0
    refused: int = 0
    moved: int = 0  # when somebody was last moved for an allocation of it
    stuck: int = 0  # when it was last to come back, and did not


class Room:
    """Free bytes of each device, now and once all who leave have left, without what is kept for who waits."""

    def __init__(self, free: Mapping[str, int], moving: Iterable[Tenant]) -> None:
        self.free = free
        self.here, self.soon = Counter(free), Counter(free)
        self.coming = set[str]()  # devices to which somebody comes back
        self.kept = set[str]()  # slices for which room is
        for one in moving:
            self.soon.update(one.gives if one.leaves else {})
            self.coming.update(one.devices if one.comes else ())

    def keep(self, one: Tenant) -> bool:
        """Keep what it waits for; whether that is there now."""
        fits = all(self.here[uuid] >= count for uuid, count in one.wants.items())
        self.here.subtract(one.wants)
        self.soon.subtract(one.wants)
        self.kept.add(one.key)
        return fits


class Idle:
    """What to do next, by what is known of each slice."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}

    def plan(self, tenants: Iterable[Tenant], free: Mapping[str, int], now: int) -> tuple[tuple[str, str], ...]:
        """Slices, each with the step that is due for it.

        `free`: bytes of each device, without what slices on their way had there, or are to have.
        """
        known = {one.key: one for one in tenants}
        self.seen = {key: seen for key, seen in self.seen.items() if key in known}
        for one in known.values():
            self._note(one, now)
        moving = [one for one in known.values() if one.moves]
        room = Room(free, moving)
        found: dict[str, str] = {}
        wanted = [one for one in known.values() if one.wanted and not one.moves and not self._stuck(one.key, now)]
        for one in sorted(wanted, key=lambda one: (now - self.seen[one.key].wanted + 1) * one.weight, reverse=True):
            if one.key not in found:
                self._serve(one, known.values(), room, found, now)
        under_way = [one for one in known.values() if one.leaves or one.comes or one.key in found]
        busy = {uuid for one in under_way for uuid in one.devices}
        for one in known.values():
            seen = self.seen[one.key]
            idle = not one.suspended and not one.wanted and any(one.held) and now - seen.worked >= one.idle_ns
            if idle and self._may_leave(one, now) and busy.isdisjoint(one.devices):
                found[one.key] = RESTS
                busy.update(one.devices)
        for key, step in found.items():
            seen = self.seen[key]
            if step == ANSWERED:
                seen.worked, seen.wanted = now, 0
            elif step == RETURNS:
                seen.began = seen.stuck = now  # unless it comes
            else:
                seen.began = seen.refused = now  # unless it goes
        return tuple(found.items())

    def _note(self, one: Tenant, now: int) -> None:
        seen = self.seen.setdefault(one.key, Seen(one.work, now, now))
        if one.work != seen.work or one.suspended or not any(one.held):
            seen.work, seen.worked = one.work, now
        if seen.began and not one.moves:
            took, left, seen.began = now - seen.began, seen.began == seen.refused, 0
            if one.suspended == left:  # else it has not moved
                seen.out, seen.back = (took, seen.back) if left else (seen.out, took)
                seen.came = now
        if not one.suspended:
            seen.stuck = 0
        elif not one.moves:
            seen.refused = 0
        if not one.wanted:
            seen.wanted = 0
        elif not seen.wanted:
            seen.wanted = now

    def _serve(self, one: Tenant, known: Iterable[Tenant], room: Room, found: dict[str, str], now: int) -> None:
        """Add the steps for one that waits to `found`, and keep room for it, unless there is never enough."""
        seen, wants = self.seen[one.key], one.wants
        near = [each for each in known if not wants.keys().isdisjoint(each.devices)]
        able = [each for each in near if each.key != one.key and self._may_leave(each, now)]
        whole = Counter(room.free)
        for each in (*able, *(each for each in near if each.leaves or each.comes)):
            whole.update(each.gives)
        if any(whole[uuid] < count for uuid, count in wants.items()):
            if not one.suspended:
                found[one.key] = ANSWERED
            return
        fits = room.keep(one)
        if fits and not one.suspended:
            found[one.key] = ANSWERED
        elif fits and room.coming.isdisjoint(one.devices):
            found[one.key] = RETURNS
            room.coming.update(one.devices)
        if fits or seen.moved and seen.wanted > seen.moved > now - AGAIN:
            return
        while short := {uuid for uuid in wants if room.soon[uuid] < 0}:
            free = [each for each in able if each.key not in room.kept and each.key not in found]
            victim = self._victim(one, [each for each in free if any(map(each.gives.get, short))], near, now)
            if victim is None:
                return
            found[victim.key] = LEAVES
            room.soon.update(victim.gives)
            seen.moved = 0 if one.suspended else now

    def _stuck(self, key: str, now: int) -> bool:
        """Whether it was to come back a moment ago, and did not: its processes may be frozen."""
        return 0 < self.seen[key].stuck > now - AGAIN

    def _victim(self, one: Tenant, able: list[Tenant], near: Iterable[Tenant], now: int) -> Tenant | None:
        """Which of `able` leaves for one that waits; None: none yet. `near` says how long moving takes."""
        stay = max(STAY_LEAST, STAY * max(self.seen[each.key].out + self.seen[each.key].back for each in near))
        least = min(each.weight for each in (one, *able))
        found = [
            (-seen.worked, -seen.came, each.key, each)
            for each in able
            if now - (seen := self.seen[each.key]).worked >= REST or (now - seen.came) * least >= stay * each.weight
        ]
        return max(found)[3] if found else None

    def _may_leave(self, one: Tenant, now: int) -> bool:
        refused = self.seen[one.key].refused
        is_there = any(one.held) and not one.suspended and not one.moves
        return is_there and (not refused or now - refused >= REFUSED)
