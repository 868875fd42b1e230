"""Looks who uses the GPUs whose policy has idle-suspend, and has idle slices suspended and wanted ones resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nvc.daemon.audit.accountant import Accountant
from nvc.daemon.schedule.slice_index import IndexedSlice, SliceIndex
from nvc.daemon.suspend.idle import SECOND, Idle, Tenant
from nvc.daemon.suspend.suspender import Suspender
from nvc.daemon.suspend.threads import Threads
from nvc.daemon.time.timing import Timing
from nvc.model.slices.isolation import MPS
from nvc.model.slices.layout import DENIED, PAUSED
from nvc.model.slices.suspension import SUSPENDED


class Use:
    """Twice a second."""

    def __init__(
        self, suspender: Suspender, slices: SliceIndex, accountant: Accountant, timing: Timing,
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.suspender, self.slices, self.accountant, self.timing = suspender, slices, accountant, timing
        self.log = log
        self.idle = Idle()
        self.threads = Threads()
        self._said: dict[str, str] = {}
        self._had: dict[tuple[str, str], tuple[int, int]] = {}  # by UUID and slice: time by the log, and work

    def look(self, now: int) -> None:
        """Ask for what is due. Raises OSError."""
        if not any(own.idle_s for own in self.slices.device_policy.values()):
            return
        for uuid, own in self.slices.device_policy.items():
            self._say(uuid, self.timing.keeper_of(uuid, now) if own.idle_s else "")
        for key, leave in self.idle.plan(tuple(self._tenants(now)), now):
            problem = self.unseen(key) if leave else ""
            if problem:
                self.log(f"slice {key}: it is idle, and not suspended: {problem}")
                continue
            done = "suspended until it is used: idle-suspend" if leave else "resumed, as it is used"
            self.log(f"slice {key}: it is {done}")
            self.suspender.ask(key, leave, now, 0 if leave else now - self.idle.waited(key, now))

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
        for uuid, own in self.slices.device_policy.items():
            for key, had, _ in self.timing.books.slices(uuid) if own.idle_s else ():
                then, done = before.get((uuid, key), (had, 0))
                done += 0 if uuid.lower() in quiet else had - then
                self._had[uuid, key] = had, done
                work[key] = work.get(key, 0) + done
        return work

    def _tenants(self, now: int) -> Iterator[Tenant]:
        work = self.count()
        users = {user.key for user in self.accountant.users}
        for key, known in self.slices.by_key.items():
            uuids = tuple(device.uuid for device in known.devices)
            idle = [self.slices.device_policy[uuid].idle_s for uuid in uuids if uuid in self.slices.device_policy]
            one = self.suspender.records.get(key)
            if not known.alive or len(idle) < len(uuids) or not uuids or not all(idle):
                continue
            suspended = one is not None and one.state == SUSPENDED
            moves = self.suspender.moves(key)
            if one is None and not moves and not (key in users and self._can_be_idle(known, uuids, now)):
                continue
            weight = max(1, *(device.weight for device in known.devices))
            yield Tenant(
                key, uuids, weight, max(idle) * SECOND, work.get(key, 0),
                suspended=one is not None,
                wanted=suspended and not moves and self._is_wanted(one.pids if one is not None else ()),
                room=one is None or self.suspender.room_refusal(one) is None,
                moves=moves,
            )  # fmt: skip

    def _can_be_idle(self, known: IndexedSlice, uuids: tuple[str, ...], now: int) -> bool:
        """Whether it is known when it works, and nothing else stops it or keeps it from being suspended."""
        stopped = any(device.flags & (PAUSED | DENIED) for device in known.devices)
        served = known.entry.isolation == MPS or known.entry.server
        return not stopped and not served and not any(self.timing.keeper_of(uuid, now) for uuid in uuids)

    def unseen(self, key: str) -> str:
        """Why nvcd could not see that a slice is wanted; "": it could."""
        try:
            for user in self.accountant.users:
                if user.key == key:
                    self.threads.calls(user.pid)
        except OSError as error:
            return f"{error.filename or '/proc'}: the threads of its processes cannot be watched: {error.strerror}"
        return ""

    def _is_wanted(self, pids: tuple[int, ...]) -> bool:
        try:
            return any(map(self.threads.wait_for_driver, pids))
        except OSError:  # nobody else would bring it back
            return True
