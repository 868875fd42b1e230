"""What slices and processes had, added up over the timekeepers that there were. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from nvc.daemon.keeper.plan import LATELY
from nvc.daemon.keeper.wire import Account

RESTS = 200_000_000  # who had nothing in these does not work any more


class Books:
    """Takes accounts, which begin from nothing with each timekeeper. Times are nanoseconds."""

    def __init__(self) -> None:
        self.account: Account | None = None
        self._before: dict[tuple[str, str], tuple[int, int]] = {}  # of the timekeepers before, by GPU and slice
        self._past: deque[Account] = deque()

    def take(self, account: Account) -> None:
        """The newest account."""
        if self.account is not None and account.began != self.account.began:
            self._before = self.totals()
            self._past.clear()
        self.account = account
        self._past.append(account)
        while len(self._past) > 2 and account.now - self._past[1].now >= LATELY:
            self._past.popleft()

    def slices(self, uuid: str) -> Iterator[tuple[str, int, int]]:
        """The slices on a GPU, each with its key, what it had and for how long it was stopped, in nanoseconds."""
        for (place, key), (had, waited) in self.totals().items():
            if place == uuid:
                yield key, had, waited

    def totals(self) -> dict[tuple[str, str], tuple[int, int]]:
        """What slices had of all GPUs and for how long they were stopped, nanoseconds, by UUID and key."""
        found = dict(self._before)
        for device in self.account.devices if self.account is not None else ():
            for one in device.slices:
                had, waited = self._before.get((device.uuid, one.key), (0, 0))
                found[device.uuid, one.key] = had + one.had_ns, waited + one.stopped_ns
        return found

    def lately(self, uuid: str) -> dict[int, int]:
        """What each process had of a GPU in the time LATELY, or since there are accounts."""
        if not self._past:
            return {}
        old, new = ({pid: had for pid, had, _ in _pids(one, uuid)} for one in (self._past[0], self._past[-1]))
        return {pid: had - old.get(pid, 0) for pid, had in new.items()}

    def resting(self, uuid: str) -> frozenset[int]:
        """Processes that had time of a GPU once, and nothing of late."""
        if not self._past:
            return frozenset()
        new = self._past[-1]
        old = next((one for one in reversed(self._past) if new.now - one.now >= RESTS), self._past[0])
        before = {pid: had for pid, had, _ in _pids(old, uuid)}
        return frozenset(pid for pid, had, _ in _pids(new, uuid) if before.get(pid) == had)


def _pids(account: Account, uuid: str) -> tuple[tuple[int, int, int], ...]:
    return next((device.pids for device in account.devices if device.uuid == uuid), ())
