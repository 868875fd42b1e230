"""Programs that try to have more of a GPU's time than their cap, each by its name, on a simulated GPU.

The shim paces programs that mean well. What holds for these is kept from outside, and judged there; here it is seen
that each works, whoever keeps time, and that the shim neither fails it nor holds it up for good. Time is virtual.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import GIB
from support.adversary_time import WAYS, Way, started
from support.vgpucap import FIXED, Capped
from support.virtual import World, device_time

KEPT = {"by the shim": 0, "from outside": 1 << 62}
#: The shim takes what waits for the host for work, and a quota that cannot be read for one that may come back.
SLOW = ("held-back", "held-one-by-one", "lone-shim")
#: Their short kernels take much of a processor.
QUEUES = ("queue", "streams")
#: A thousand calls for a millisecond of kernels, if the shim does not pace them.
FLOODS = ("new-streams", "short-threads")


def cases() -> list[object]:
    """Where time is kept from outside, the shim does less: that is tried at night."""
    night = [pytest.mark.nightly]
    return [
        pytest.param(way, kept, id=f"{way.name}-{kept}", marks=night if way.nightly or outside else [])
        for way in WAYS
        for outside, kept in enumerate(KEPT)
    ]


@pytest.mark.parametrize("way, kept", cases())
def test_each_works(
    world: World, capped: Callable[..., Capped], take_time: str, way: Way, kept: str
) -> None:
    slice_ = capped(program=take_time)
    slice_.limit(8 * GIB, cores=50, policy=FIXED, kept_until=KEPT[kept])
    process = started(world, take_time, way, slice_.environment())
    seconds = 5 if way.name in SLOW else 0.2 if way.copies or way.name in QUEUES else 1
    world.run(seconds if kept == "by the shim" or way.name in SLOW else 0.02 if way.name in FLOODS else 0.1)
    had = device_time(slice_.root).total
    assert way.ends or process.poll() is None
    world.kill(process)
    assert way.ends or way.copies or had > 0.01


def test_a_storm_lasts_as_long_as_it_is_told(
    world: World, capped: Callable[..., Capped], take_time: str
) -> None:
    """Its clock begins with the first of its processes that has a context, and not before."""
    slice_ = capped(program=take_time)
    slice_.cap(10)
    world.run(10)  # since the host was started, as far as the program can tell
    took = float(world.output([take_time, "storm", "0.3", "1000"], slice_.environment()).split()[1])
    assert 300 <= took


def test_what_can_never_run_is_not_counted(
    world: World, capped: Callable[..., Capped], take_time: str
) -> None:
    """A kernel behind a function in which the process is killed. The last one's may end with the time."""
    slice_ = capped(program=take_time)
    slice_.cap(50)
    used = world.output([take_time, "kill-in-callback", "2", "1000"], slice_.environment()).split()[0]
    assert float(used) == pytest.approx(1000 * device_time(slice_.root).total, abs=20)
