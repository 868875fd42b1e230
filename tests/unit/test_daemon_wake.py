"""nvcd hears of changes from the kernel: in these tests it has no clock by which it would look."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.host import GPU, Host, host

from nvc.daemon.io.loop import SECOND
from nvc.daemon.main import obey_signals
from nvc.daemon.places import watch_changes
from nvc.kernel import LinuxKernel
from nvc.model.request import SliceRequest, TimeSetting
from nvc.model.slices.policy import POLICIES
from nvc.slices.admin.change import pause, set_limits
from nvc.slices.admin.device_policy import set_device_policy
from nvc.slices.store.status import SliceStatus, statuses

KERNEL = LinuxKernel()


@pytest.fixture
def woken() -> Iterator[Host]:
    """nvcd with one slice, which shares by weight."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGIO)}
    try:
        with host() as made:
            made.arrive(POLICIES.index("weight"), 0, 1)
            made.daemon.slices.refresh(0)
            obey_signals(made.daemon)
            watch_changes(made.daemon)
            yield made
    finally:  # the end of the registry is told of too
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)


def run_until(made: Host, condition: Callable[[], bool]) -> None:
    """Let the loop run until that holds of what nvcd knows."""
    loop, refresh = made.daemon.loop, made.daemon.slices.refresh
    loop.stopped = False

    def refreshed(now: int, census: bool = True) -> None:
        refresh(now, census)
        if condition():
            loop.stop()

    made.daemon.slices.refresh = refreshed  # type: ignore[method-assign]
    loop.once(time.monotonic_ns() + 20 * SECOND, lambda now: loop.stop())
    loop.run()
    made.daemon.slices.refresh = refresh  # type: ignore[method-assign]
    assert condition(), "nvcd was not woken"


def claim(made: Host) -> Any:
    """What nvcd knows of the first slice."""
    (force,) = made.daemon.slices.force.values()
    return force.terms[0].demand


def first() -> SliceStatus:
    return statuses(KERNEL)[0][0]


def test_a_limit_changes(woken: Host) -> None:
    """In place: neither the registry nor the slice's directory has another time."""
    set_limits(KERNEL, first(), SliceRequest(weight=TimeSetting("--weight", "7", 7)), ())
    run_until(woken, lambda: claim(woken).weight == 7)


def test_a_slice_is_paused(woken: Host) -> None:
    pause(KERNEL, first(), (), True)
    run_until(woken, lambda: claim(woken).paused)


def test_a_policy_is_laid_down(woken: Host) -> None:
    number = POLICIES.index("fair")
    set_device_policy(KERNEL, (GPU,), lambda old: old.replace(policy=number))
    run_until(
        woken, lambda: [force.policy.number for force in woken.daemon.slices.force.values()] == [number]
    )


def test_slices_come_and_go(woken: Host) -> None:
    woken.arrive(POLICIES.index("first"), 0, 1)
    run_until(woken, lambda: len(woken.daemon.slices.by_key) == 2)
    woken.leave(woken.keys[0])
    run_until(woken, lambda: len(woken.daemon.slices.by_key) == 1)


def test_quota_files_stay_open(woken: Host) -> None:
    """A tenant with CAP_SYS_ADMIN can hold up whoever opens its quota."""
    (known,) = woken.daemon.slices.by_key.values()
    set_limits(KERNEL, first(), SliceRequest(weight=TimeSetting("--weight", "7", 7)), ())
    run_until(woken, lambda: claim(woken).weight == 7)
    assert [*woken.daemon.slices.by_key.values()] == [known]


def test_a_signal_ends_it(woken: Host) -> None:
    signal.raise_signal(signal.SIGTERM)
    woken.daemon.loop.run()
    assert woken.daemon.loop.stopped


def test_what_was_not_foreseen_does_not_end_it(woken: Host) -> None:
    """A tenant may find something that a part of nvcd does not understand: the parts behind it still work."""
    done: list[int] = []
    said: list[str] = []

    def fails(now: int) -> None:
        raise OverflowError("int too large")

    daemon: Any = woken.daemon
    daemon.log = said.append
    daemon.timing.second, daemon.suspender.second = fails, done.append
    daemon.second(SECOND)
    assert done == [SECOND]
    (line,) = [one for one in said if "OverflowError" in one]
    assert "not foreseen: OverflowError: int too large" in line and "test_daemon_wake.py:" in line
