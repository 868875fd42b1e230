"""A shim whose clocks jump: caps hold, and nobody waits for what is not to come."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.clocks import jumping
from support.vgpucap import Capped, Worker

MS = 1e-3


@pytest.mark.parametrize("how", ["wall", "forward"])
def test_a_cap_holds(live_capped: Callable[..., Capped], scratch: str, how: str) -> None:
    slice_ = live_capped()
    slice_.cap(25)
    variables = {**slice_.environment(), **jumping(scratch, how)}
    slice_.workers.append(Worker(slice_.tool, variables, ns=1000000, batch=0, warm=0.2, seconds=1.2))
    got = slice_.workers[-1].started().result()
    assert 0 < got.rate * MS < 0.25 + 0.04  # a busy host lets it have less
    refilled = slice_.budget()[1]
    assert (refilled > time.monotonic_ns() + 3000e9) == (how == "forward")  # the shim did see it
