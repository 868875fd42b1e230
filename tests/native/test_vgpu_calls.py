"""What the shim adds to a launch and the wait for it, in virtual time.

There a call of the driver takes 1 us, a look at a clock 50 ns, and computing nothing. So how much longer a round
takes than without the shim says how many there are of both.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import GIB
from support.nightly import few
from support.vgpucap import FIXED, Capped

CALL, LOOK = 1000, 50  # nanoseconds
ROUND = {"ns": 5000, "rounds": 5000, "batch": 1, "seconds": 0.1, "warm": 0.1}
KINDS = few(("plain", "default", "ptsz", "graph", "ex", "coop"), 3)


def longer_by(slice_: Capped, kept_until: int = 0, **words: object) -> float:
    """Nanoseconds of a round, of thousands, under a cap that does not hold the program back."""
    slice_.limit(8 * GIB, cores=90, policy=FIXED, kept_until=kept_until)
    native = slice_.native(**ROUND, **words).started().result()
    return 1e9 / slice_.work(**ROUND, **words).rate - 1e9 / native.rate


@pytest.mark.parametrize("kind", KINDS)
def test_while_time_is_kept_from_outside(capped: Callable[..., Capped], kind: str) -> None:
    """A look at a coarse clock, and no call of the driver: 0.1 us at most."""
    assert longer_by(capped(), 1 << 62, kind=kind) < 2 * LOOK
