"""Looks who uses GPUs whose slices have idle-suspend, and has idle slices suspended and wanted ones resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from nvc.daemon.audit.accountant import Accountant
from nvc.daemon.schedule.slice_index import IndexedSlice, SliceIndex
from nvc.daemon.suspend.asks import Ask, Asks, answer
from nvc.daemon.suspend.idle import ANSWERED, RESTS, RETURNS, SECOND, Idle, Tenant
from nvc.daemon.suspend.observer import QUIET, WANTED, Observer, Subject
from nvc.daemon.suspend.room import GPU_SPARE
from nvc.daemon.suspend.suspender import Suspender
from nvc.daemon.time.timing import Timing
from nvc.model.slices.sizes import size_text
from nvc.model.slices.suspension import IDLE, RESUMING, ROOM, SUSPENDED, SUSPENDING
from nvc.model.slices.time_settings import idle_seconds

MINUTE = 60 * SECOND
UNKNOWN = 1 << 40  # bytes: what NVML does not tell is enough for anybody


class Use:
    """With each answer of NVML, twice a second."""

    def __init__(
        self, suspender: Suspender, slices: SliceIndex, accountant: Accountant, timing: Timing,
        observer: Observer, log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.suspender, self.slices, self.accountant, self.timing = suspender, slices, accountant, timing
        self.log = log
        self.idle = Idle()
        self.observer = observer
        self.asks = Asks(accountant)
        self._said: dict[str, str] = {}
        self._told: dict[str, int] = {}  # slices that got no room, and when that was last logged
        self._had: dict[tuple[str, str], tuple[int, int]] = {}  # by UUID and slice: time by the log, and work

    def before(self, now: int) -> None:
        """Note what NVML's next answer is to be seen with. Raises OSError."""
        if self.seconds():
            self.asks.note(self._subject(now).values())
            self.observer.look(self._observed(now), now)

    def look(self, now: int) -> None:
        """Ask for what is due. Raises OSError."""
        if not (idle := self.seconds()):
            return
        uuids = self._uuids(idle)
        for uuid in uuids | self._said.keys():
            self._say(uuid, self.timing.keeper_of(uuid, now) if uuid in uuids else "")
        asks = self.asks.read()
        answered = [ask for ask in asks.values() if not ask.bytes]
        waiting = {key: ask for key, ask in asks.items() if ask.bytes}
        free = self.suspender.free()
        for key, step in self.idle.plan(tuple(self._tenants(waiting, now)), free, now):
            if step == ANSWERED:
                answered.append(waiting[key])
                self._say_of_room(waiting[key], free, now)
            else:
                self._move(key, step, now)
        answer(self._subject(now), answered, now)

    def _move(self, key: str, step: str, now: int) -> None:
        leave, seen = step != RETURNS, self.observer.answer(key)
        if leave and seen not in (WANTED, QUIET):
            problem = seen or "its threads have not been looked at yet"
            self.log(f"{self.slices.whose(key)}: it is idle, and not suspended: {problem}")
            return
        done = "suspended until it is used: idle-suspend" if leave else "resumed, as it is used"
        self.log(f"{self.slices.whose(key)}: it is {done}")
        wanted, why = 0 if leave else self.idle.seen[key].wanted, IDLE if step == RESTS else ROOM
        self.suspender.ask(key, leave, now, wanted, why)

    def _say_of_room(self, ask: Ask, free: Mapping[str, int], now: int) -> None:
        """That an allocation finds room, or none; the latter of a slice once a minute."""
        what = f"{self.slices.whose(ask.key)}: {size_text(ask.bytes)} of {ask.uuid} for an allocation:"
        lacks = ask.bytes + GPU_SPARE - max(0, free.get(ask.uuid.lower(), 0))
        if lacks <= 0:
            self.log(f"{what} there is room")
        elif now - self._told.get(ask.key, -MINUTE) >= MINUTE:
            self._told = {key: at for key, at in self._told.items() if now - at < MINUTE} | {ask.key: now}
            self.log(f"{what} no room, and no slice can be suspended for it: {size_text(lacks)} are missing")

    def _say(self, uuid: str, cause: str) -> None:
        """Why idle slices of a GPU cannot be told from others; "": they can."""
        if cause and self._said.get(uuid) != cause:
            self.log(f"{uuid}: idle-suspend suspends nothing, as nvcd cannot see which slices work: {cause}")
        self._said[uuid] = cause

    def count(self) -> dict[str, int]:
        """The work of each slice: what it had of its devices, but for while NVML shows no kernel on one.

        Who was last on an idle GPU has all of it by the log, which tells of changes.
        """
        quiet = {seen.uuid.lower() for seen in self.accountant.devices if seen.busy == 0}
        before, self._had = self._had, {}
        work: dict[str, int] = {}
        for uuid in self._uuids(self.seconds()):
            for key, had, _ in self.timing.books.slices(uuid):
                then, done = before.get((uuid, key), (had, 0))
                done += 0 if uuid.lower() in quiet else had - then
                self._had[uuid, key] = had, done
                work[key] = work.get(key, 0) + done
        return work

    def seconds(self) -> dict[str, int]:
        """After how many seconds slices are suspended, by key: by their own rule, else by that of all devices."""
        policy, found = self.slices.device_policy, {}
        for key, known in self.slices.by_key.items():
            if known.alive and known.devices:
                own = known.entry.idle_suspend
                times = [policy[one.uuid].idle_s if one.uuid in policy else 0 for one in known.devices]
                found[key] = idle_seconds(own) if own else all(times) and max(times)
        return {key: seconds for key, seconds in found.items() if seconds}

    def _uuids(self, idle: Iterable[str]) -> set[str]:
        """The devices of these slices."""
        return {device.uuid for key in idle for device in self.slices.by_key[key].devices}

    def _subject(self, now: int) -> dict[str, IndexedSlice]:
        """The slices that have idle-suspend, and the time of all of whose devices the driver keeps."""
        idle = self.seconds()
        able = {uuid for uuid in self._uuids(idle) if not self.timing.keeper_of(uuid, now)}
        known = {key: self.slices.by_key[key] for key in idle}
        return {key: one for key, one in known.items() if all(device.uuid in able for device in one.devices)}

    def _tenants(self, asks: dict[str, Ask], now: int) -> Iterator[Tenant]:
        work, subject = self.count(), self._subject(now)
        moving = self.suspender.on_their_way()
        had = [(one.key, each.uuid, each.moved) for one in moving.values() for each in one.saved]
        swaps = {key for key, known in self.slices.by_key.items() if known.swaps}
        for key in swaps - moving.keys():
            uuid, accounts = self.slices.by_key[key].devices[0].uuid, self.accountant.ledgers.accounts.get(key, ())
            had += [(key, uuid, one.movable) for one in accounts if not one.away]
        for user in self.accountant.users:
            if user.key not in moving and user.key not in swaps:
                had.append((user.key, user.uuid, user.used if user.used >= 0 else UNKNOWN))
        held = Counter[tuple[str, str]]()
        for key, uuid, count in had:
            held[key, uuid.lower()] += count
        for key, seconds in self.seconds().items():
            known, one = self.slices.by_key[key], self.suspender.records.get(key)
            uuids = tuple(device.uuid.lower() for device in known.devices)
            ask = asks.get(key)
            suspended = one is not None and one.state == SUSPENDED
            moves, ways = self.suspender.moves(key), self.suspender.ways(key)
            # Of one that cannot be looked at nobody would see that it is wanted.
            waits = suspended and not moves and self.observer.answer(key) not in (QUIET, "")
            needs = self.suspender.needs(one) if one is not None else {}
            if ask is not None and one is None:
                needs = {ask.uuid: ask.bytes + GPU_SPARE}
            needs = {uuid.lower(): count for uuid, count in needs.items()}
            able = key in moving or (key in subject and self.suspender.refused(known, True) is None)
            yield Tenant(
                key, uuids, max(1, *(device.weight for device in known.devices)), seconds * SECOND,
                work.get(key, 0),
                suspended=one is not None,
                wanted=waits or (ask is not None and (suspended or one is None)),
                needs=tuple(needs.get(uuid, 0) for uuid in uuids),
                moves=moves,
                leaves=SUSPENDING in ways,
                comes=RESUMING in ways and (one is not None or key in moving),  # else its hook is called
                held=tuple(held[key, uuid] for uuid in uuids) if able else (),
            )  # fmt: skip

    def _observed(self, now: int) -> dict[str, Subject]:
        """The slices of whose threads something has to be known: suspended ones, and those that may be."""
        away = {
            key: (one.pids, True) for key, one in self.suspender.records.items()
            if one.state == SUSPENDED and key in self.slices.by_key
        }  # fmt: skip
        pids: dict[str, set[int]] = {key: set() for key in self._subject(now) if key not in self.suspender.records}
        for user in self.accountant.users:
            if user.key in pids:
                pids[user.key].add(user.pid)
        return away | {key: (tuple(sorted(found)), False) for key, found in pids.items() if found}
