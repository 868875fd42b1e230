"""Who started or stopped channels, as only nvcd may: the tracer saw it, or the driver's log has what came of it.

Time is passed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from nvc.daemon.io.loop import SECOND
from nvc.daemon.io.seldom import Seldom
from nvc.daemon.keeper.caps import NEVER
from nvc.daemon.keeper.device import SliceTime
from nvc.daemon.time.owners import STRANGER
from nvc.kernel.objects import KILLED, MEDDLED, NAMED, TIMESLICE, News

BROKE = SECOND // 100  # that a process had the GPU while it was stopped: somebody has started its channels
BREAKS = 3  # how often that is seen until the process is killed: it is stopped again each time
SEEN = 2 * SECOND  # until the log has told all that came of a call which the tracer saw
THEN = "it is killed the third time"
WHY = "it started or stopped channels, as only nvcd may"


def number_of(key: str) -> int:
    """What the tracer has in place of a slice's key: 30 bits, 0 for none."""
    if key == STRANGER:
        return 0
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big") >> 2 or 1


class Meddling:
    """`take` has what the tracer told, and comes before `look_at`, which has what came of it."""

    def __init__(
        self, owners: Callable[[Iterable[int]], dict[int, str]], slices: Callable[[], Iterable[str]],
        whose: Callable[[str], str], end: Callable[[int], None], log: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`owners`: the keys of processes' slices, without those that have ended. `slices`: the keys of all.
        `whose` names one in the log. `end` kills a process, or raises OSError.
        """
        self._owners = owners
        self._slices = slices
        self._whose = whose
        self._end = end
        self._log = log
        self._seldom = Seldom(log)
        self.counts = {"killed": 0, "meddled": 0, "timeslice": 0, "broke": 0}
        #: Clients of whose channels the tracer saw some started, and the number of the slice that did; until when
        #: the log may have what came of it.
        self._named: dict[tuple[int, int], int] = {}
        #: What each process was acted on for, that it had while it was stopped; and how often.
        self._broke: dict[int, int] = {}
        self._breaks: dict[int, int] = {}

    def second(self, now: int) -> None:
        """What is due once a second."""
        self._seldom.second(now)
        self._named = {one: until for one, until in self._named.items() if until > now}

    def take(self, news: Iterable[News], now: int) -> None:
        """What the tracer told in one turn."""
        killed: dict[int, list[int]] = {}
        meddled: dict[int, int] = {}
        named: set[tuple[int, int, int]] = set()
        for one in news:
            if one.kind == KILLED:
                killed.setdefault(one.slice, []).append(one.pid)
            elif one.kind == MEDDLED:
                meddled[one.pid] = meddled.get(one.pid, 0) + one.times
            elif one.kind == NAMED:
                named.add((one.client, one.slice, one.pid))
            elif one.kind == TIMESLICE:
                self.counts["timeslice"] += one.times
        for number, pids in killed.items():
            self._killed(number, pids, now)
        if not meddled and not named:
            return
        owners = self._owners({*meddled, *(pid for _, number, pid in named if not number)})
        for client, number, pid in named:
            self._named[client, number or number_of(owners.get(pid, STRANGER))] = now + SEEN
        for pid, times in meddled.items():
            self._meddled(pid, owners.get(pid), times, now)

    def _killed(self, number: int, pids: list[int], now: int) -> None:
        """The tracer has killed processes that were guarded."""
        self.counts["killed"] += len(pids)
        key = next((key for key in self._slices() if number_of(key) == number), "")
        whose = self._whose(key) if key else "a slice"
        self._seldom.say(f"killed {number}", f"killed process {pids[0]} of {whose}: {WHY}", now, len(pids))

    def _meddled(self, pid: int, key: str | None, times: int, now: int) -> None:
        """A process that was not guarded has started or stopped channels: one of a slice is killed for it, too."""
        self.counts["meddled"] += times
        if not key:
            where = "has ended" if key is None else "is in no slice"
            text = f"process {pid}, which {where}, started or stopped channels of others"
            self._seldom.say(f"meddled {pid}", text, now, times)
            return
        self.kill(pid, key, WHY)

    def kill(self, pid: int, key: str, why: str) -> None:
        """End a process of a slice, and say why."""
        try:
            self._end(pid)
        except OSError as error:
            self._log(f"process {pid} of {self._whose(key)} cannot be killed: {error}; {why}")
            return
        self.counts["killed"] += 1
        self._log(f"killed process {pid} of {self._whose(key)}: {why}")

    def look_at(self, found: SliceTime, clients: Callable[[str, int], set[int]], now: int) -> None:
        """Act on processes that the log has while they were stopped, where the tracer saw nobody else start them.

        A thread that changes a call while the tracer reads it hides the call, and not what comes of it. `clients`
        are those that a process of a slice uses.
        """
        for pid, had in found.broke:
            more = had - min(self._broke.get(pid, 0), had)
            if more < BROKE:
                continue
            self._broke[pid] = had
            if self._excused(clients(found.key, pid), number_of(found.key), now):
                continue
            self.counts["broke"] += 1
            self._breaks[pid] = times = self._breaks.get(pid, 0) + 1
            text = f"it had the GPU for {more // 1_000_000} ms while it was stopped, so its channels were started"
            if times < BREAKS:
                whose = f" of {self._whose(found.key)}" if found.key in self._slices() else ""
                self._log(f"process {pid}{whose} is stopped again: {text}; {THEN}")
                continue
            self._broke[pid] = NEVER
            key = self._owners((pid,)).get(pid, STRANGER)
            if key:
                self.kill(pid, key, text)
            else:
                self._log(f"process {pid} is in no slice: {text}")

    def _excused(self, clients: set[int], own: int, now: int) -> bool:
        """Whether another slice, or nobody's process, was seen to start channels of these clients, or of all: 0."""
        return any(
            by != own and until > now
            for (client, by), until in self._named.items()
            if client in clients or not client
        )

    def forget(self, told: set[int]) -> None:
        """All processes are left out but those that the log has while they were stopped."""
        self._broke = {pid: had for pid, had in self._broke.items() if pid in told}
        self._breaks = {pid: times for pid, times in self._breaks.items() if pid in told}
