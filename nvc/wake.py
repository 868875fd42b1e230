"""A call to wake up that a signal handler can make: threading.Event takes a lock that the main thread may hold."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Wake:
    """Calls from signal handlers and other threads to one thread that waits for them."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[None] = SimpleQueue()

    def call(self) -> None:
        """Have `wait` return, now or as soon as it begins. May be used in a signal handler."""
        self._calls.put(None)

    def wait(self, seconds: float) -> None:
        """Return after the next call, or after so many seconds. All calls until then count as one."""
        try:
            self._calls.get(timeout=seconds)
            while True:
                self._calls.get_nowait()
        except Empty:
            return
