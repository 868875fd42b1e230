"""No test hangs a run: each phase of a test (set-up, call, tear-down) has a time limit."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Generator
from typing import Any

import pytest

#: Seconds that a phase may take, and one of a test that builds programs or runs long.
PHASE, LONG_PHASE = 300.0, 1800.0
#: Seconds between further attempts to end a phase: what it waits for next may not come either.
AGAIN = 10.0
MARKS = ("nightly", "engines", "gpu")
#: Fixtures that build programs when a test first wants them, and the folder of those tests.
BUILDS, FOLDER = {"cluster", "made"}, "tests/kubernetes/"


class Bound:
    """A plugin for pytest.

    A phase that takes longer than `phase` seconds fails where it waits, and the next phase or test goes on. If no
    signal can end a test, its process ends after two to three times that time, with a traceback; parallel.py names
    the test.
    """

    def __init__(self, phase: float = PHASE, long_phase: float = LONG_PHASE) -> None:
        self._phase = phase
        self._long_phase = long_phase
        self._end = 0.0  # of time.monotonic(), when the process ends
        self._stderr = os.dup(2)  # pytest captures the other one while a test runs
        # In a child, an alarm does what it did before.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL))

    def seconds(self, item: pytest.Item) -> float:
        """How long a phase of this test may take."""
        builds = item.nodeid.startswith(FOLDER) and BUILDS & set(getattr(item, "fixturenames", ()))
        return self._long_phase if builds or any(map(item.get_closest_marker, MARKS)) else self._phase

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        seconds, now = self.seconds(item), time.monotonic()
        if not 2 * seconds <= self._end - now <= 3 * seconds:  # each call makes a thread
            faulthandler.dump_traceback_later(3 * seconds, exit=True, file=self._stderr)
            self._end = now + 3 * seconds
        try:
            return (yield)
        finally:
            if nextitem is None:
                faulthandler.cancel_dump_traceback_later()
                self._end = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._bounded("set-up", self.seconds(item)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._bounded("call", self.seconds(item)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from self._bounded("tear-down", self.seconds(item)))

    def _bounded(self, phase: str, seconds: float) -> Generator[None, Any, Any]:
        def end(*_: object) -> None:
            pytest.fail(f"the {phase} took longer than {seconds:g} s")

        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
