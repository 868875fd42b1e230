"""The event loop: descriptors that are ready, times that have come. One thread, no more than epoll needs."""

from __future__ import annotations

import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

IN = select.EPOLLIN
SECOND = 1_000_000_000


class Every:
    """Something that is done again and again."""

    __slots__ = ("period", "due", "work")

    def __init__(self, period: int, due: int, work: Callable[[int], None]) -> None:
        self.period = period  # nanoseconds
        self.due = due
        self.work = work


class Loop:
    """`run` returns after `stop`. Work is handed the time, nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.regular: list[Every] = []
        self.deadlines: Callable[[], int | None] = lambda: None  # of what must be on time
        self.on_time: Callable[[int], None] = lambda now: None
        self.after: Callable[[int], None] = lambda now: None  # after each round
        self.stopped = False
        self.wakes = 0

    def add(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call `handler` whenever the descriptor can be read."""
        self.handlers[fd] = handler
        self.epoll.register(fd, IN)

    def remove(self, fd: int) -> None:
        """Forget a descriptor that is still open."""
        if self.handlers.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def pause(self, fd: int, paused: bool) -> None:
        """Do not look at a descriptor for now, but keep it."""
        self.epoll.modify(fd, 0 if paused else IN)

    def every(self, period: int, work: Callable[[int], None]) -> Every:
        """Call `work` now and whenever `period` nanoseconds have passed."""
        self.regular.append(Every(period, time.monotonic_ns(), work))
        return self.regular[-1]

    def stop(self) -> None:
        """Make `run` return."""
        self.stopped = True

    def run(self) -> None:
        """Until `stop` is called."""
        poll, handlers, clock = self.epoll.poll, self.handlers, time.monotonic_ns
        following = 0
        while not self.stopped:
            due = self.deadlines()
            if due is None or due > following:
                due = following
            left = (due - clock()) / SECOND
            events = poll(left if left > 0 else 0, 64)
            self.wakes += 1
            now = clock()
            for fd, _ in events:
                handler = handlers.get(fd)
                if handler is not None:  # not closed by one that came before
                    handler(now)
            due = self.deadlines()
            if due is not None and now >= due:
                self.on_time(now)
            self.after(now)
            if now >= following:
                following = self._regular(now)

    def _regular(self, now: int) -> int:
        for one in self.regular:
            if now >= one.due:
                one.due = now + one.period
                one.work(now)
        return min((one.due for one in self.regular), default=now + SECOND)
