"""The event loop: descriptors that are ready, times that have come. One thread, no more than epoll needs."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

IN = select.EPOLLIN
SECOND = 1_000_000_000
REST = SECOND // 20


def received(channel: socket.socket, size: int) -> bytes | None:
    """What can be read; b"": the other end is closed. None: nothing yet."""
    try:
        return channel.recv(size)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""


@dataclass(eq=False)
class Timed:
    """Something that is done at a time, and again after each period if it has one."""

    period: int  # nanoseconds
    due: int
    work: Callable[[int], None]


class Loop:
    """`run` returns after `stop`. Work is handed the time, nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.paused: set[int] = set()
        self.timed: list[Timed] = []
        self.following = 0  # when the next of them is due
        self.stopped = False
        self.wakes = 0

    def add(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call `handler` whenever the descriptor can be read."""
        self.handlers[fd] = handler
        self.epoll.register(fd, IN)

    def remove(self, fd: int) -> None:
        """Forget a descriptor that is still open."""
        if self.handlers.pop(fd, None) is not None:
            if fd in self.paused:
                self.paused.discard(fd)
            else:
                self.epoll.unregister(fd)

    def pause(self, fd: int, paused: bool) -> None:
        """Do not look at a descriptor for now, but keep it; nor be told that the other end is closed."""
        if paused == (fd in self.paused) or fd not in self.handlers:
            return
        if paused:
            self.paused.add(fd)
            self.epoll.unregister(fd)  # without events epoll still tells of EPOLLHUP, again and again
        else:
            self.paused.discard(fd)
            self.epoll.register(fd, IN)

    def rest(self, fd: int, now: int) -> None:
        """Do not look at a descriptor for a moment."""
        self.pause(fd, True)
        self.once(now + REST, lambda now: self.pause(fd, False))

    def every(self, period: int, work: Callable[[int], None]) -> None:
        """Call `work` now and whenever `period` nanoseconds have passed."""
        self._time(Timed(period, time.monotonic_ns(), work))

    def once(self, due: int, work: Callable[[int], None]) -> None:
        """Call `work` at that time."""
        self._time(Timed(0, due, work))

    def _time(self, timed: Timed) -> None:
        self.timed.append(timed)
        self.following = min(self.following, timed.due)

    def stop(self) -> None:
        """Make `run` return."""
        self.stopped = True

    def poll(self, due: int) -> list[int]:
        """Descriptors that can be read, as soon as there are some; none: that time has come."""
        left = (due - time.monotonic_ns()) / SECOND
        return [fd for fd, _ in self.epoll.poll(left if left > 0 else 0, 64)]

    def run(self) -> None:
        """Until `stop` is called."""
        handlers, clock = self.handlers, time.monotonic_ns
        while not self.stopped:
            ready = self.poll(self.following)
            self.wakes += 1
            now = clock()
            for fd in ready:
                handler = handlers.get(fd)
                if handler is not None:  # not closed by one that came before
                    handler(now)
            if now >= self.following:
                self._timed(now)

    def _timed(self, now: int) -> None:
        due = [one for one in self.timed if now >= one.due]
        self.timed = [one for one in self.timed if now < one.due or one.period]
        for one in due:
            if one.period:  # in step: what is due each second is so with what is due twice a second
                one.due += one.period * ((now - one.due) // one.period + 1)
            one.work(now)
        self.following = min((one.due for one in self.timed), default=now + SECOND)
