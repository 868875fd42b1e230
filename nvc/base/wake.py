"""Waiting for signals, without missing one."""

from __future__ import annotations

import os
import select
import signal

from nvc.base.types import Callable


class Wake:
    """Calls from signal handlers and other threads to the main thread, which waits for them.

    Python runs handlers in the main thread alone, and a system call that waits there may not end: the signal may
    come just before it, or the kernel may give it to another thread, such as one of gRPC's. So signals write to a
    pipe.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def obey(self, numbers: tuple[signal.Signals, ...], handler: Callable[[], object]) -> None:
        """Have signals end a wait after `handler` was called. One object of a process may do that."""
        for number in numbers:
            signal.signal(number, lambda *_: handler())
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def call(self) -> None:
        """Have `wait` return, now or as soon as it begins. May be used in a signal handler."""
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:  # so many calls that the pipe is full
            pass

    def wait(self, seconds: float | None = None, fd: int = -1) -> None:
        """Return after the next call, after so many seconds, or when `fd` can be read.

        All calls until then count as one.
        """
        if fd >= 0:
            self._poll.register(fd, select.POLLIN)
        try:
            self._poll.poll(None if seconds is None else max(seconds, 0.0) * 1000)
        finally:
            if fd >= 0:
                self._poll.unregister(fd)
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            return
