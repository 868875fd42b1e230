"""Keeps the time of one device: the plan, the log, the caps, and what the driver said. Time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from nvc.base.errors import NvcError, one_line
from nvc.base.value import Value
from nvc.daemon.keeper.accounts import Accounts
from nvc.daemon.keeper.caps import NEVER, Cap
from nvc.daemon.keeper.executor import Executor
from nvc.daemon.keeper.plan import STRANGERS, DevicePlan, Group, SlicePlan
from nvc.daemon.keeper.slice_state import SliceState, made_of
from nvc.kernel.rm import Record, SwitchLog

if TYPE_CHECKING:
    from nvc.daemon.keeper.driver import RmDriver

MS = 1_000_000
SECOND = 1000 * MS
ACCOUNT = 100 * MS  # between two looks, if nothing else asks for one
CALM = 5 * ACCOUNT  # likewise where nobody is stopped: the driver shares the time, and nvcd only counts it
LEFT_PROCESS = SECOND  # after a process has left a slice, records of it may still come
JUMP = 5 * MS  # between the GPU's timer and CLOCK_MONOTONIC, from look to look
RETRY = 100 * MS  # until a stop or start that failed is repeated
TIMER = 3 * SECOND  # between two questions for the GPU's timer, which take the driver a millisecond or two
ATTEMPTS = 3  # to read clock and timer at one moment
TIDY = 10 * SECOND  # between two looks at which processes may be forgotten
READ_BACK = 2  # timeslices in a second, of slices that work: each takes half a millisecond of a processor
READ_BACK_ODD = 16  # likewise, for ODD_FOR after one was found that somebody has changed
ODD_FOR = 60 * SECOND
REOPEN = SECOND  # until the log is opened again
NO_PHASES: Mapping[str, int] = MappingProxyType({})
SETTLED = 20 * MS  # after a stop, or a change of its channels, what a process has is not told of


class SliceTime(Value):
    """What became of one slice. Nanoseconds, counted from when the timekeeper first knew it."""

    key: str
    had_ns: int  # by the log
    doubtful_ns: int  # of which nobody knows whether it had them; they count for its cap
    stopped_ns: int
    stops: int
    broke: tuple[tuple[int, int], ...]  # process, and what it had while it was stopped: somebody has started it
    refused: int  # stops and starts that the driver refused
    retimed: int  # timeslices that were not what was set, though the tracer saw nobody set them


class DeviceTime(Value):
    """What became of a device's time."""

    uuid: str
    instance: int  # the driver's number of it; -1: it could not be opened
    logged: bool  # the log tells who had the GPU; otherwise the clock tells who may have
    pids: tuple[tuple[int, int, int], ...]  # of each process: its number, nanoseconds, switches
    slices: tuple[SliceTime, ...]
    lost: int  # records
    jumps: int  # of the GPU's timer
    calls: int
    failed: tuple[tuple[int, int], ...]  # the driver's status, how often
    problem: str  # why slices are not held, or not exactly; "": they are


class DeviceKeeper:
    """One device. `apply` takes a plan, `step` does what is due and says when it is to be called again."""

    def __init__(
        self, plan: DevicePlan, driver: RmDriver, clock: Callable[[], int], alive: Callable[[int], bool],
        trace: deque[tuple[str, int, int, int]],
    ) -> None:  # fmt: skip
        """Raises RmError if the device cannot be opened."""
        self.uuid = plan.uuid
        self.clock = clock
        self.trace = trace
        self.device = driver.subdevice(plan.uuid)
        self.executor = Executor(self.device, driver, clock, alive)
        self.slices: dict[str, SliceState] = {}
        self.lengths: list[tuple[Group, int]] = []  # timeslices to be set, one a step
        self.checks: list[tuple[SliceState, Group]] = []  # timeslices to be read back, one a step
        self.suspects: list[tuple[SliceState, Group]] = []  # that differed: the tracer may still tell who set them
        self.odd_until = 0  # when a timeslice was found changed: for so long more are read back
        self.log: SwitchLog | None = None
        self.log_problem = ""
        self.timer_problem = ""
        self.looked, self.time, self.apart = self.timed = self._moment()
        self.reopen = self.tidied = self.checked = now = self.looked
        self.credited: dict[int, int] = {}  # what of each process's time its slice was charged with
        self.uncharged = 0  # of all that was had
        self.is_odd = False  # at the last look: somebody had the device and was not charged, or broke a stop
        self.accounts = Accounts(self.time)
        self._open(now)

    def _open(self, now: int) -> None:
        try:
            self.log = self.device.log()
            self.log_problem = ""
        except (OSError, NvcError) as error:
            self.log_problem = f"no switch log: {one_line(error)}"
            self.reopen = now + REOPEN

    def _moment(self) -> tuple[int, int, int]:
        """The host's clock and the GPU's timer, or the clock again, and how far apart they may have been read."""
        for _ in range(ATTEMPTS):
            now = self.clock()
            try:
                time = self.device.now()
                self.timer_problem = ""
            except (OSError, NvcError) as error:
                self.timer_problem = f"no GPU timer: {one_line(error)}"
                return now, now, 0
            apart = self.clock() - now
            if apart < MS:
                break  # this process was not held up between the two
        return now, time, apart

    def _estimated(self) -> tuple[int, int, int]:
        """What the clock says, and by it the timer if that was read lately; and how far apart they may be."""
        now, (asked, time, apart) = self.clock(), self.timed
        if now - asked < TIMER and not self.timer_problem:
            return now, time + now - asked, apart
        self.timed = self._moment()
        return self.timed

    def _fits(self, records: Sequence[Record], time: int) -> bool:
        """Whether these are of the time since the last look, so that the GPU's timer has not jumped."""
        ends = (*records[:1], *records[-1:])
        return all(self.accounts.now - JUMP <= one.time_ns <= time + JUMP for one in ends)

    def apply(self, plan: DevicePlan, phases: Mapping[str, int] = NO_PHASES) -> None:
        """Take a plan: stop what it stops, and start what it does not. `phases`: of caps, by the slice's key."""
        now = self.clock()
        keys = {one.key for one in plan.slices}
        for key in [key for key in self.slices if key not in keys]:
            del self.slices[key]
        for one in plan.slices:
            known = self.slices.setdefault(one.key, SliceState(one))
            self._take(known, one, now, phases.get(one.key, 0))
        groups = [group for one in plan.slices for group in one.groups]
        self.executor.forget(groups)
        for known in self.slices.values():
            self._hold(known, now)
        self._set_lengths()

    def _set_lengths(self) -> None:
        """Note which timeslices are to be set: some calls fail, and are made again."""
        self.lengths = [
            (group, known.plan.timeslice_us)
            for known in self.slices.values()
            for group in known.plan.groups
            if self.executor.wants_length(group, known.plan.timeslice_us)
        ]

    def _read_back(self) -> None:
        """Note which timeslices are to be read back: of slices that worked, those that have waited longest."""
        for known, group in self.suspects:
            if group in known.plan.groups:  # as it was: touched is another one if the tracer saw it
                known.retimed += 1
                self.odd_until = self.looked + ODD_FOR
        self.suspects.clear()
        read, found = self.executor.read, []
        for known in self.slices.values():
            if known.had > known.seen and known.plan.timeslice_us:
                waits = [(read.get((one.client, one.handle), 0), known, one) for one in known.plan.groups]
                waits.sort(key=lambda one: one[0])
                found += [(place, *one) for place, one in enumerate(waits)]
            known.seen = known.had
        found.sort(key=lambda one: one[:2])
        most = READ_BACK_ODD if self.looked < self.odd_until else READ_BACK
        self.checks = [(known, group) for _, _, known, group in found[:most]]

    def _check(self, known: SliceState, group: Group) -> None:
        us = known.plan.timeslice_us
        if self.executor.differs(group, us):
            self.suspects.append((known, group))
            self.lengths.append((group, us))

    def _take(self, known: SliceState, plan: SlicePlan, now: int, phase: int) -> None:
        """Take what is new of a slice."""
        known.plan = plan
        made = made_of(plan)
        for pid in [pid for pid in {*made, *known.made} if made.get(pid) != known.made.get(pid)]:
            known.since[pid] = now
            known.broke.pop(pid, None)
        known.made = made
        present = {pid for group in plan.groups for pid in (group.pid, group.opener or group.pid)}
        for pid, until in known.pids.items():
            if pid not in present and until == NEVER:
                known.pids[pid] = now + LEFT_PROCESS
        known.pids.update(dict.fromkeys(present, NEVER))
        if not plan.quota_ns:
            known.cap = None
        elif known.cap is None:
            known.cap = Cap(plan.quota_ns, plan.period_ns, plan.burst_ns, plan.slack_ns, now, phase, plan.in_turn)
        else:
            known.cap.change(
                plan.quota_ns, plan.period_ns, plan.burst_ns, plan.slack_ns, now, phase, plan.in_turn
            )

    def _hold(self, known: SliceState, now: int) -> None:
        """Stop or start a slice as its plan and its cap have it; also channels that it made meanwhile."""
        cap = known.cap
        if known.plan.stopped or cap is not None and not cap.runs:
            self._stop(known, now)
        elif known.off or known.fresh:
            self._start(known, now)

    def _stop(self, known: SliceState, now: int) -> bool:
        done = self.executor.stop(known.plan.groups)
        known.tried = 0 if done else now + RETRY
        if done and not known.off:
            known.off = self.clock()
        known.refused += not done
        known.fresh = False
        return done

    def _start(self, known: SliceState, now: int) -> bool:
        done = self.executor.start(known.plan.groups)
        known.refused += not done
        known.tried = 0 if done else now + RETRY
        if done:
            if known.off:
                known.stopped += self.clock() - known.off
            known.off, known.fresh = 0, False
        return done

    def step(self, now: int) -> int:
        """Do what is due. Returns when there is something to do again, CLOCK_MONOTONIC in nanoseconds."""
        due = self._next_look()
        for known in self.slices.values():
            if known.cap is not None and known.pids and known.cap.look_at < due and not known.plan.stopped:
                due = known.cap.look_at
        if now >= due:
            self.look()
            if self.executor.again:
                self._set_lengths()
        following = self._next_look()
        for known in self.slices.values():
            following = min(following, self._keep(known, self.clock()))
        if self.lengths and following > self.clock() + MS:
            self.executor.set_length(*self.lengths.pop())
            return following if not self.lengths else self.clock()
        if self.checks and following > self.clock() + MS:
            self._check(*self.checks.pop())
            return self.clock()
        return following

    def _next_look(self) -> int:
        """When the log is read, if no cap asks for it earlier: seldom while nobody has anything to run."""
        if not any(known.pids for known in self.slices.values()):
            return self.looked + SECOND
        return self.looked + (CALM if self.is_calm else ACCOUNT)

    @property
    def is_calm(self) -> bool:
        """Whether nobody is stopped, now or later."""
        return not any(known.off or known.cap or known.plan.stopped for known in self.slices.values())

    def _keep(self, known: SliceState, now: int) -> int:
        """Do what is due for a slice. Returns when something is due for it again."""
        cap = known.cap
        if known.tried and now >= known.tried:
            self._hold(known, now)
        if known.plan.stopped or cap is None:
            return known.tried or NEVER
        cap.renew(now)
        if cap.ends(now):
            cap.stopped(self.clock(), self._stop(known, now), self.accounts.epoch)
        elif cap.begins(now):
            done = self._start(known, now)
            cap.started(self.clock(), done)
        return min(cap.due if known.pids else cap.next, known.tried or NEVER)

    def look(self) -> None:
        """Read the log, and charge everybody with what he had.

        The timer is read first: of all that was before, the log tells.
        """
        now, time, apart = self._estimated()
        records: Sequence[Record] = ()
        lost, blind = 0, self.log is None
        if self.log is not None:
            try:
                records, lost = self.log.read()
            except (OSError, NvcError) as error:
                self.log.close()
                self.log, blind = None, True
                self.log_problem = f"the switch log cannot be read: {one_line(error)}"
                self.reopen = self.clock() + REOPEN
        elif self.clock() >= self.reopen:
            self._open(self.clock())
        if not self._fits(records, time):
            now, time, apart = self.timed = self._moment()
        before, passed, ticked = self.looked, now - self.looked, time - self.time
        unsure, self.apart = apart + self.apart, apart
        self.looked, self.time = now, time
        accounts = self.accounts
        if blind:
            doubtful = accounts.blind(time, passed)
        elif abs(ticked - passed) > JUMP + passed // 100 + unsure:
            doubtful = accounts.jumped(time, passed)
        else:
            last = records[-1].time_ns if records else time
            doubtful = accounts.take(records, lost, max(time, accounts.now, min(last, time + JUMP)))
        self.trace.extend((self.uuid, one.time_ns, one.kind, one.pid) for one in records)
        self.is_odd = False
        for known in self.slices.values():
            broke = sum(known.broke.values())
            self._charge(known, doubtful, before, now)
            if sum(known.broke.values()) > broke:
                self.is_odd = True
                self.executor.stop(known.plan.groups, again=True)
        uncharged, self.uncharged = self.uncharged, sum(accounts.had.values()) - sum(self.credited.values())
        self.is_odd |= self.uncharged > uncharged
        if now >= self.checked + SECOND:
            self.checked = now
            self._read_back()
        if now >= self.tidied + TIDY:
            self.tidied = now
            kept = frozenset(pid for known in self.slices.values() for pid in known.pids)
            for gone in accounts.forget(kept):
                self.credited.pop(gone, None)

    def _charge(self, known: SliceState, doubtful: int, before: int, now: int) -> None:
        accounts, credited, amount, on, left = self.accounts, self.credited, 0, False, 0
        for pid, until in known.pids.items():
            had = accounts.had.get(pid, 0)
            own = had - credited.get(pid, 0)
            amount += own
            credited[pid] = had
            if own and known.off and self._broke(known, pid, before):
                known.broke[pid] = known.broke.get(pid, 0) + own
            on = on or pid == accounts.on
            left += until < now
        if left:
            known.since = {pid: at for pid, at in known.since.items() if known.pids.get(pid, 0) >= now}
            known.pids = {pid: until for pid, until in known.pids.items() if until >= now}
        known.had += amount
        cap = known.cap
        if cap is None:
            return
        if doubtful and cap.runs and cap.epoch != accounts.epoch:
            doubtful = min(doubtful, now - cap.since)
            known.doubtful += doubtful
            amount += doubtful
        cap.had(amount, now, on)

    def _broke(self, known: SliceState, pid: int, since: int) -> bool:
        """Whether all that a process could run on was stopped from then on."""
        made = known.made.get(pid)
        settled = max(known.off, known.since.get(pid, since)) + SETTLED <= since
        return bool(made) and settled and self.executor.holds(pid, known.plan.groups)

    def report(self) -> DeviceTime:
        """What became of the time until the last look."""
        now, accounts, executor = self.looked, self.accounts, self.executor
        return DeviceTime(
            self.uuid,
            self.device.instance,
            self.log is not None,
            tuple((pid, had, accounts.switches.get(pid, 0)) for pid, had in accounts.had.items()),
            tuple(
                SliceTime(
                    key, known.had, known.doubtful,
                    known.stopped + (max(now - known.off, 0) if known.off else 0),
                    known.cap.stops if known.cap else 0, tuple(known.broke.items()), known.refused,
                    known.retimed,
                )
                for key, known in self.slices.items()
            ),
            accounts.lost, accounts.jumps, executor.calls, tuple(sorted(executor.failed.items())),
            executor.problem or self.log_problem or self.timer_problem,
        )  # fmt: skip

    def close(self) -> None:
        """Start all that was stopped, give strangers the driver's timeslice back, and close the log."""
        strangers = self.slices.get(STRANGERS)
        if strangers is not None:
            self.executor.give_back(strangers.plan.groups)
        self.executor.forget(())
        if self.log is not None:
            self.log.close()
