"""A small discrete model of a GPU's runlist, and of the driver that is asked for stops and timeslices.

Time is virtual. Groups with work take turns, each for its timeslice; a change takes 0.15 ms; a stop 0.5 ms and a
start 0.3. Kernels are preempted in the middle. The switch log has a record for each time that a context comes and
goes: a lone one that never goes writes nothing.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from nvc.daemon.keeper.plan import Group
from nvc.kernel.rm import END, START, Record

MS = 1_000_000
SECOND = 1000 * MS
CHANGE, STOP, BEGIN, LENGTH, LOOK, CLOCK = 150_000, 500_000, 300_000, 270_000, 85_000, 3_000
LATE = 38 * MS  # of a record that nobody has asked for
FOREVER = 1 << 62
GONE = 0x21
Burst = tuple[int, int]  # nanoseconds of work, and then of none


def always() -> Iterator[Burst]:
    """A tenant that always has work, of kernels of any length: the engine never sees it without."""
    yield FOREVER, 0


def steps(work: int, pause: int) -> Iterator[Burst]:
    """A loop of steps with a pause after each."""
    while True:
        yield work, pause


def after(pause: int, work: Iterator[Burst]) -> Iterator[Burst]:
    """The same, later."""
    yield 0, pause
    yield from work


class Context:
    """A channel group in the model."""

    def __init__(
        self, client: int, handle: int, pid: int, channels: int, work: Iterator[Burst], now: int
    ) -> None:
        self.client, self.handle, self.pid = client, handle, pid
        self.channels = [handle + 1 + number for number in range(channels)]
        self.off: set[int] = set()
        self.uses = self.channels[0]  # its work is on this channel
        self.length = 2048_000
        self.work = work
        self.left, self.pause = next(work)
        self.ready = now
        self.had = 0
        self.serial = self.touched = 0
        if not self.left:
            self.finish(now)

    def finish(self, now: int) -> None:
        """Its burst is done."""
        while not self.left:
            self.ready = max(now, self.ready) + self.pause
            now = self.ready
            self.left, self.pause = next(self.work, (FOREVER, 0))

    def runnable(self, now: int) -> bool:
        """Whether the engine could work for it."""
        return self.uses not in self.off and self.left > 0 and self.ready <= now

    @property
    def group(self) -> Group:
        """As a plan names it."""
        channels = tuple(self.channels)
        return Group(self.client, self.handle, self.pid, 3, channels, self.serial, self.touched, self.pid)


class Gpu:
    """One GPU. `wait` lets time pass."""

    def __init__(self, idle_ends: bool = False) -> None:
        self.now = SECOND
        self.idle_ends = idle_ends  # whether a context that has no more work leaves the engine
        self.contexts: list[Context] = []
        self.on: Context | None = None
        self.turn = 0  # when its timeslice ends
        self.following: Context | None = None
        self.changed = 0  # when that one is on
        self.records: deque[Record] = deque()
        self.capacity = 16384
        self.lost = 0
        self.offset = 1_700_000_000 * SECOND  # of the GPU's timer
        self.status: int | None = None  # what the driver answers to everything, if set
        self.calls: dict[str, int] = {}
        self.spent = 0  # in calls
        self.handles = 0x5C000000
        self.happens: list[tuple[int, Callable[[], None]]] = []  # in order
        self.has_log = True
        self.random = random.Random(7)

    # -- tenants

    def context(self, pid: int, work: Iterator[Burst], channels: int = 8, client: int = 0) -> Context:
        """Make a channel group with channels, and its work."""
        self.handles += 0x1000
        made = Context(client or 0xC1D00000 + pid, self.handles, pid, channels, work, self.now)
        self.contexts.append(made)
        return made

    def end(self, context: Context) -> None:
        """Its process has ended."""
        self.contexts.remove(context)
        if self.following is context:
            self.following = None
        if self.on is context:
            self._leave()

    def at(self, time: int, work: Callable[[], None]) -> None:
        """Do something at a time."""
        self.happens.append((time, work))
        self.happens.sort(key=lambda one: one[0])

    # -- the engine

    def wait(self, until: int) -> None:
        """Let time pass."""
        while self.happens and self.happens[0][0] <= until:
            time, work = self.happens.pop(0)
            self._run(time)
            work()
        self._run(until)

    def _run(self, until: int) -> None:
        while self.now < until:
            self._once(until)

    def _once(self, until: int) -> None:
        if self.following is not None:
            self.now = min(self.changed, until)
            if self.now == self.changed:
                self.on, self.following = self.following, None
                self.turn = self.now + self.on.length
                self._log(START, self.on)
            return
        on = self.on
        if on is not None and not on.runnable(self.now):
            other = self._next(on)
            if on.uses in on.off or other is not None or self.idle_ends:
                self._leave()
                on = None
        if on is None:
            other = self._next(None)
            if other is not None:
                self.following, self.changed = other, self.now + CHANGE
                return
            self.now = min(until, self._arrival())
            return
        if not on.runnable(self.now):
            self.now = min(until, self._arrival())
            return
        if self.now >= self.turn:
            other = self._next(on)
            if other is not None:
                self._leave()
                self.following, self.changed = other, self.now + CHANGE
                return
            self.turn = self.now + on.length
        stop = min(until, self.turn, self.now + on.left)
        on.had += stop - self.now
        on.left -= stop - self.now
        self.now = stop
        if not on.left:
            on.finish(self.now)

    def _arrival(self) -> int:
        times = [one.ready for one in self.contexts if one.uses not in one.off and one.ready > self.now]
        return min(times, default=FOREVER)

    def _leave(self) -> None:
        assert self.on is not None
        self._log(END, self.on)
        self._last = self.on
        self.on = None

    _last: Context | None = None

    def _next(self, after: Context | None) -> Context | None:
        """Round robin."""
        from_ = after or self._last
        place = self.contexts.index(from_) + 1 if from_ in self.contexts else 0
        for one in self.contexts[place:] + self.contexts[:place]:
            if one is not after and one.runnable(self.now):
                return one
        return None

    def _log(self, kind: int, context: Context) -> None:
        if len(self.records) >= self.capacity:
            self.lost += 1
        else:
            self.records.append(Record(self.now + self.offset, kind, context.pid))

    # -- the driver

    def call(self, name: str, takes: int) -> int | None:
        """A call to the driver takes its time. What it answers to everything, if that is set."""
        self.calls[name] = self.calls.get(name, 0) + 1
        self.spent += takes
        self.wait(self.now + takes)
        return self.status

    def _each(self, channels: Sequence[tuple[int, int]], off: bool) -> int:
        there = {(one.client, channel): one for one in self.contexts for channel in one.channels}
        status = 0
        for client, channel in channels:
            found = there.get((client, channel))
            if found is None:
                status = GONE
            elif off:
                found.off.add(channel)
            else:
                found.off.discard(channel)
        return status

    def let_go(self) -> None:
        """Start everything."""
        Subdevice(self).start([(one.client, channel) for one in self.contexts for channel in one.channels])

    def subdevice(self, uuid: str) -> Subdevice:
        """The one there is."""
        return Subdevice(self)

    def set_timeslice(self, fd: int, client: int, group: int, us: int) -> int:
        """As nvc/kernel/rm.py has it."""
        answer = self.call("timeslice", LENGTH)
        if answer is not None:
            return answer
        for one in self.contexts:
            if (one.client, one.handle) == (client, group):
                one.length = us * 1000
                return 0
        return 0x57

    def get_timeslice(self, fd: int, client: int, group: int) -> tuple[int, int]:
        """As nvc/kernel/rm.py has it."""
        answer = self.call("read", CLOCK)
        if answer is not None:
            return answer, 0
        found = [one.length // 1000 for one in self.contexts if (one.client, one.handle) == (client, group)]
        return (0, found[0]) if found else (0x57, 0)

    def borrow(self, pid: int, number: int) -> int:
        """As nvc/kernel/rm.py has it."""
        if not self.alive(pid):
            raise ProcessLookupError(pid)
        return os.open("/dev/null", os.O_RDONLY)

    def alive(self, pid: int) -> bool:
        """Whether a process is there."""
        return any(one.pid == pid for one in self.contexts)

    def clock(self) -> int:
        """CLOCK_MONOTONIC."""
        return self.now


class Subdevice:
    """As nvc/kernel/rm.py has it."""

    instance = 0

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def stop(self, channels: Sequence[tuple[int, int]]) -> int:
        """Take channels off."""
        answer = self.gpu.call("stop", STOP * max((len(channels) + 63) // 64, 1))
        return self.gpu._each(channels, True) if answer is None else answer

    def start(self, channels: Sequence[tuple[int, int]]) -> int:
        """Let channels run."""
        answer = self.gpu.call("start", BEGIN * max((len(channels) + 63) // 64, 1))
        return self.gpu._each(channels, False) if answer is None else answer

    def now(self) -> int:
        """The GPU's timer."""
        self.gpu.call("now", CLOCK)
        return self.gpu.now + self.gpu.offset

    def log(self) -> Log:
        """The switch log."""
        if not self.gpu.has_log:
            raise OSError(1, "no log")
        return Log(self.gpu)


class Log:
    """The switch log of the model."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def read(self) -> tuple[list[Record], int]:
        """Flushes and drains. Without an answer to the flush, only what is old enough has come."""
        gpu = self.gpu
        answer = gpu.call("flush", LOOK)
        if not gpu.has_log:
            raise OSError(5, "no log")
        old = FOREVER if answer is None else gpu.now + gpu.offset - LATE
        found = []
        while gpu.records and gpu.records[0].time_ns <= old:
            found.append(gpu.records.popleft())
        lost, gpu.lost = gpu.lost, 0
        return found, lost

    def close(self) -> None:
        """Nothing is written any more."""
