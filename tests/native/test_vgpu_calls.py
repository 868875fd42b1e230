"""What the shim adds to a launch and the wait for it, under a cap that does not hold the program back.

In virtual time a call of the driver takes 1 us, a look at a clock 50 ns, and computing nothing. So how much
longer a round takes than without the shim says how many there are of both. On a GPU every call costs the
program time, and one that records an event takes the device 2 us more.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.vgpucap import Capped

CALL, LOOK = 1000, 50  # nanoseconds
ROUND = {"ns": 5000, "rounds": 5000, "batch": 1, "seconds": 0.5, "warm": 0.5}


def longer_by(slice_: Capped, **words: object) -> float:
    """Nanoseconds of a round, of thousands: what happens each millisecond is a part of a look."""
    slice_.cap(90)
    native = slice_.native(**ROUND, **words).started().result()
    return 1e9 / slice_.work(**ROUND, **words).rate - 1e9 / native.rate


# Each context has default streams: so the shim asks which one is current, and of which device. Only its own thread
# can ask about a stream of `ptsz`: an event is recorded there.
@pytest.mark.parametrize(
    ("kind", "calls", "looks"),
    [
        ("plain", 0, 7),
        ("memset", 0, 7),
        ("graph", 0, 6),
        ("copy", 0, 6),
        ("default", 3, 7),
        ("ptsz", 4, 10),
    ],
)
def test_calls_and_looks_of_a_round(
    capped: Callable[..., Capped], kind: str, calls: int, looks: int
) -> None:
    """The program waits when its kernel has long ended: so all that the shim does is in the time of a round."""
    longer = longer_by(capped(), kind=kind, aside=50, rest=50)
    assert longer < calls * CALL + (looks + 1) * LOOK


def test_what_a_program_that_waits_loses(capped: Callable[..., Capped]) -> None:
    """While its kernel runs, the shim does what is to be done between the two calls: a look is for free."""
    assert longer_by(capped()) < 7 * LOOK
