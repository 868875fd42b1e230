"""A shim whose clocks jump: caps hold, and nobody waits for what is not to come."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest import approx
from support.clocks import jumping
from support.vgpucap import PERIOD, Capped, Worker
from support.virtual import World, device_time


@pytest.mark.parametrize("how", ["wall", "forward", "back"])
def test_a_cap_holds(world: World, capped: Callable[..., Capped], scratch: str, how: str) -> None:
    slice_ = capped()
    slice_.cap(25)
    variables = {**slice_.environment(), **jumping(scratch, how)}
    worker = Worker(slice_.tool, variables, time=world, ns=1_000_000, batch=0, warm=0, seconds=10)
    slice_.workers.append(worker)
    got = worker.started().result()
    # The credit of a period is saved up at the beginning, and when an hour passes at once. Who is set back waits.
    used = device_time(slice_.root).total
    assert used == approx(2.5, abs=0.05 if how == "back" else 0.5 * PERIOD) and used <= 2.5 + 0.5 * PERIOD
    assert got.longest < 100
    assert (slice_.budget()[1] > world.now_ns + 3000 * 10**9) == (how == "forward")  # the shim did see it


def test_a_clock_that_was_replaced(world: World, capped: Callable[..., Capped], scratch: str) -> None:
    """By a preloaded library, such as libfaketime: the shim asks the kernel."""
    slice_ = capped()
    slice_.cap(10)
    variables = {**slice_.environment(), **jumping(scratch, "fast")}
    worker = Worker(slice_.tool, variables, time=world, ns=1_000_000, batch=0, warm=0, seconds=10)
    slice_.workers.append(worker)
    worker.started().result()
    assert device_time(slice_.root).total == approx(1, abs=0.5 * PERIOD)
