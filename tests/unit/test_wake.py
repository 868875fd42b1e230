"""Signals and calls that end a wait come at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support import PATIENCE

from nvc.base.wake import Wake
from nvc.kubernetes.main import Plugin


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
    before = signal.getsignal(signal.SIGUSR1)
    wake.obey((signal.SIGUSR1,), lambda: None)
    child = os.fork()
    if child == 0:
        os.kill(os.getppid(), signal.SIGUSR1)
        os._exit(0)
    wake.wait(10 * PATIENCE)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGUSR1, before)
    assert os.waitpid(child, 0)[1] == 0


def test_a_signal_that_another_thread_takes(alarm: None) -> None:
    """The kernel gives a signal to any thread: a wait in the main one is ended all the same."""
    wake, told = Wake(), []
    program = f"import os; os.kill({os.getpid()}, {int(signal.SIGUSR1)})"
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    before = signal.getsignal(signal.SIGUSR1)
    wake.obey((signal.SIGUSR1,), lambda: told.append(1))
    try:
        # Blocked here, it goes to the other one.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        with subprocess.Popen([sys.executable, "-c", program]) as sender:
            wake.wait(10 * PATIENCE)
        assert (told, sender.returncode) == ([1], 0)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, before)
        end.set()
        other.join()


def test_a_descriptor_that_can_be_read_ends_a_wait(alarm: None) -> None:
    wake = Wake()
    read, write = os.pipe()
    os.write(write, b"x")
    wake.wait(10 * PATIENCE, read)
    os.close(write)
    os.close(read)
    wake.wait(0.01)


def test_more_calls_than_a_pipe_takes(alarm: None) -> None:
    wake = Wake()
    for _ in range(70_000):
        wake.call()
    wake.wait(10 * PATIENCE)
    assert wake.wait(0.01) is None


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
