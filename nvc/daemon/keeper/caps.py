"""The cap of one slice: when it is stopped, started, and looked at. Pure: times and what it had are passed in.

A slice has a quota in each period. It is stopped once it had that by the log, and started when the next period
begins. What it had above or below is carried on, so nothing adds up; of what it left unused, `burst` is kept.

Its periods begin at the same moments on all devices: a program that spans several waits on each for the others, and
what it waits on the device it has had.

Looks cost, so there is one where the quota is expected to end: a slice that runs cannot have more than the time
that passes, and how much less it has beside others is learnt.
"""

from __future__ import annotations

MS = 1_000_000
#: Nanoseconds, and a part of the quota, before its end, a quota counts as had: a look costs more than it brings.
CLOSE, CLOSE_PART = 50_000, 50
STOP_TAKES = 400_000  # nanoseconds that a slice has after the decision to stop it, until that is learnt
DEBT = 10  # quotas: what a slice had above, because the timekeeper was held up, is forgiven beyond this
LEARN = 4  # stops whose cost is looked at first; later one of four times as many
NEVER = 1 << 62


class Cap:
    """The state of one capped slice on one device. Nanoseconds; `now` of CLOCK_MONOTONIC."""

    __slots__ = (
        "phase", "quota", "period", "burst", "slack", "left", "next", "runs", "look_at", "tail", "rate", "since",
        "tried", "epoch", "stops", "settled", "in_turn",
    )  # fmt: skip

    def __init__(
        self, quota: int, period: int, burst: int, slack: int, now: int, phase: int = 0, in_turn: bool = False
    ) -> None:
        """`phase`: a moment at which a period begins. `in_turn`: it runs only for its quota from there on."""
        self.quota, self.period, self.burst, self.slack, self.phase = quota, period, burst, slack, phase
        self.in_turn = in_turn
        self.next = self._boundary(now)  # when a period begins
        self.left = quota * (self.next - now) // period  # of the quota; below zero: it had more
        self.runs = True  # not stopped by this
        self.look_at = now  # when what it had is wanted; NEVER: not before it runs
        self.tail = STOP_TAKES  # what it still has after the decision to stop
        self.rate = 1.0  # what it had of the time in which it could run
        self.since = now  # when it was started, or last looked at since
        self.tried = 0  # until when a call that failed is not repeated
        self.epoch = -1  # of the accounts: it was off the engine in this one, so all it had since is known
        self.stops = 0
        self.settled = True  # what it had after the last stop is counted

    def change(
        self, quota: int, period: int, burst: int, slack: int, now: int, phase: int = 0, in_turn: bool = False
    ) -> None:
        """Other terms. What it had in this period counts."""
        self.in_turn = in_turn
        if (quota, period, burst, slack) != (self.quota, self.period, self.burst, self.slack):
            self.left = min(self.left + quota - self.quota, quota + burst)
            other = period != self.period
            self.quota, self.period, self.burst, self.slack = quota, period, burst, slack
            if other:
                self.next = self._boundary(now)
            self.look_at = now
        if phase != self.phase:
            self.phase, before = phase, self.next
            self.next = self._boundary(now)
            self.left += self.quota * (self.next - before) // self.period  # for a longer period more, or less
            self.look_at = now

    def _boundary(self, now: int) -> int:
        """The first beginning of a period after now."""
        return now + self.period - (now - self.phase) % self.period

    def had(self, amount: int, now: int, on: bool) -> None:
        """It had this much more since the last look; `on`: it is on the engine now."""
        self.left = max(self.left - amount, -DEBT * self.quota)
        if not self.runs:
            self.look_at = NEVER
            if not self.settled and not on:
                self.settled = True
                self.tail += (min(amount, 4 * STOP_TAKES) - self.tail) // 4
            return
        passed = now - self.since
        if passed >= MS // 2:
            own = amount if self.settled else max(amount - self.tail, 0)
            # Weighed by how much of the quota this look was about.
            weight = min(passed / self.quota, 1.0) * 0.5
            self.rate += (min(own / passed, 1.0) - self.rate) * weight
        self.settled = True
        self.since = now
        self.look_at = now + self._wait()

    def _wait(self) -> int:
        """Nanoseconds until the quota is expected to end.

        If the slice is suddenly alone, it has at most a tenth of a period too much by then, and less next time.
        """
        want = self.left + self.slack - self.tail
        if want <= self._close():
            return 0
        expected = want / max(self.rate, 0.01)
        return max(int(min(expected, want + self.period / 10)), CLOSE)

    def _close(self) -> int:
        return max(CLOSE, self.quota // CLOSE_PART)

    def renew(self, now: int) -> None:
        """Add a quota for each period that has begun."""
        if now < self.next:
            return
        periods = (now - self.next) // self.period + 1
        if self.in_turn:  # nothing is kept for later, or owed for long: the turns of the others lie there
            self.left = max(self.left, -self.quota // DEBT)
        self.left = min(self.left + periods * self.quota, self.quota + (0 if self.in_turn else self.burst))
        self.next += periods * self.period
        if self.runs:
            self.look_at = max(self.look_at, self.since + self._wait())

    def ends(self, now: int) -> bool:
        """Whether it is to be stopped now, straight after a look."""
        over = self.left + self.slack - self.tail <= self._close() or self.in_turn and now >= self._end
        return self.runs and now >= self.tried and over

    def begins(self, now: int) -> bool:
        """Whether it is to be started now."""
        late = self.in_turn and now >= self._end - self.quota // 4
        return not self.runs and now >= self.tried and self._ready() and not late

    @property
    def _end(self) -> int:
        """When its turn ends, so that it has left the device when the next one begins."""
        return self.next - self.period + self.quota - self.tail

    def _ready(self) -> bool:
        return self.left - (0 if self.settled else self.tail) >= self.quota // 4

    def stopped(self, now: int, done: bool, epoch: int) -> None:
        """Its channels were stopped, or the call failed."""
        if not done:
            self.tried = now + self.period
            self.look_at = self.tried
            return
        self.runs, self.settled, self.epoch = False, False, epoch
        self.stops += 1
        # What it had after the decision is seen with what it has next; alone, it is seen now and then.
        self.look_at = now + MS if self.stops <= LEARN or self.stops % (4 * LEARN) == 0 else NEVER

    def started(self, now: int, done: bool) -> None:
        """Its channels were started, or the call failed."""
        if not done:
            self.tried = now + self.period
            return
        self.runs, self.since = True, now
        owed = 0 if self.settled else self.tail
        self.left -= owed
        self.look_at = now + self._wait()
        self.left += owed

    @property
    def due(self) -> int:
        """When it is next to be thought of."""
        if self.in_turn:
            change = max(self._end, self.tried) if self.runs else self.next
        else:
            change = self.next if self.runs or not self._ready() else self.tried
        return min(self.look_at, change)
