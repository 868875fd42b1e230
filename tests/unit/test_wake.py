"""What wakes the plugin: calls come from signal handlers too, at any moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from support import PATIENCE

from nvc.kubernetes.main import Plugin
from nvc.wake import Wake


@pytest.fixture
def alarm() -> Iterator[None]:
    """A wait that is not ended by what the test does fails it."""
    signal.alarm(int(PATIENCE) // 3)
    yield
    signal.alarm(0)


def test_calls_before_a_wait_end_it(alarm: None) -> None:
    wake = Wake()
    wake.call()
    wake.call()
    wake.wait(10 * PATIENCE)
    wake.wait(0.01)  # all of them counted as one


def test_a_signal_that_comes_in_a_wait(alarm: None) -> None:
    wake = Wake()
    before = signal.signal(signal.SIGUSR1, lambda *_: wake.call())
    child = os.fork()
    if child == 0:
        os.kill(os.getppid(), signal.SIGUSR1)
        os._exit(0)
    wake.wait(10 * PATIENCE)
    signal.signal(signal.SIGUSR1, before)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_end_between_two_rounds_is_not_missed(alarm: None, when: str) -> None:
    """SIGTERM comes when a round is about to begin: the plugin ends, and not a minute later."""

    class Late(Wake):
        def wait(self, seconds: float) -> None:
            if when == "before":
                plugin.end()
            super().wait(10 * seconds)
            if when == "after":
                plugin.end()

    plugin: Any = Plugin.__new__(Plugin)
    plugin._wake, plugin._ended = Late(), False
    plugin._wake.call()
    plugin.look = plugin._collect = lambda: None
    plugin.run()
