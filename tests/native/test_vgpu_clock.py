"""A shim whose clock is not the kernel's."""

from __future__ import annotations

from collections.abc import Callable

from pytest import approx
from support.clocks import fast
from support.vgpucap import PERIOD, Capped, Worker
from support.virtual import World, device_time


def test_a_clock_that_was_replaced(world: World, capped: Callable[..., Capped], scratch: str) -> None:
    """By a preloaded library, such as libfaketime: the shim asks the kernel."""
    slice_ = capped()
    slice_.cap(10)
    variables = {**slice_.environment(), **fast(scratch)}
    worker = Worker(slice_.tool, variables, time=world, ns=1_000_000, batch=0, warm=0, seconds=10)
    slice_.workers.append(worker)
    worker.started().result()
    assert device_time(slice_.root).total == approx(1, abs=0.5 * PERIOD)
