"""Who had the GPU, by the switch log of one device. Pure: records and the time are passed in.

The log has a START and an END for each time that a context was on the engine. What lies between the two is certain.
Where records are lost, where the GPU's clock jumps, and until the first record, nobody knows who was on the engine:
that time is counted apart, and begins a new epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from nvc.kernel.rm import START, Record

NOBODY = -1
PIDS_MAX = 4096
KEPT = 60_000_000_000  # nanoseconds for which a process that had nothing more is remembered


class Accounts:
    """What each process had since the log was opened. Times are nanoseconds of the GPU's timer."""

    __slots__ = ("had", "switches", "last", "on", "epoch", "unknown", "lost", "jumps", "now")

    def __init__(self, now: int) -> None:
        self.had: dict[int, int] = {}  # by process: nanoseconds
        self.switches: dict[int, int] = {}  # times that it was switched to
        self.last: dict[int, int] = {}  # when it last had something
        self.on = NOBODY  # the process on the engine, as far as it is known
        self.epoch = 0  # raised whenever knowledge is lost
        self.unknown = True  # nobody knows who is on the engine
        self.lost = self.jumps = 0
        self.now = now

    def take(self, records: Iterable[Record], lost: int, now: int) -> int:
        """Count what the log says up to `now`; returns the nanoseconds of which nobody knows who had them.

        A process that is on the engine has had it until now. `lost`: how many records found no room, which are
        later than those before them and of unknown place among these.
        """
        since, certain, on = self.now, 0, NOBODY if self.unknown else self.on
        begun = since
        had, switches, last = self.had, self.switches, self.last
        known = not self.unknown  # who is on
        dark = 0
        for record in records:
            time, pid = record.time_ns, record.pid
            if time < begun or time > now:
                time = begun if time < begun else now
            if not known:
                dark += time - begun
                known = True
            elif on != NOBODY:
                had[on] = had.get(on, 0) + time - begun
                certain += time - begun
                last[on] = time
            begun = time
            if record.kind == START:
                on = pid
                switches[pid] = switches.get(pid, 0) + 1
            else:
                on = NOBODY
        if lost:
            self.lost += lost
            self.epoch += 1
            self.on, self.unknown, self.now = NOBODY, True, now
            return now - since - certain
        if not known:
            dark += now - begun
        elif on != NOBODY:
            had[on] = had.get(on, 0) + now - begun
            last[on] = now
        self.on, self.unknown, self.now = on, not known, now
        return dark

    def blind(self, now: int, passed: int) -> int:
        """There is no log of the last `passed` nanoseconds, or it means nothing. Returns them."""
        self.epoch += 1
        self.on, self.unknown, self.now = NOBODY, True, now
        return passed

    def jumped(self, now: int, passed: int) -> int:
        """The GPU's timer was set: the log of the last `passed` nanoseconds means nothing. Returns them."""
        self.jumps += 1
        self.last = dict.fromkeys(self.last, now)
        return self.blind(now, passed)

    def forget(self, kept: frozenset[int]) -> list[int]:
        """Forget processes that had nothing for long, but for those `kept`. Returns them."""
        old = self.now - KEPT
        gone = [pid for pid, last in self.last.items() if last < old and pid not in kept and pid != self.on]
        if len(self.last) - len(gone) > PIDS_MAX:
            oldest = sorted(
                (last, pid) for pid, last in self.last.items() if pid not in kept and pid != self.on
            )
            gone = [pid for _, pid in oldest[: len(self.last) - PIDS_MAX]]
        for pid in gone:
            for table in (self.had, self.switches, self.last):
                table.pop(pid, None)
        return gone
