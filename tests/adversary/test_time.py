"""Programs that try to have more of a GPU's time than their cap, on a simulated GPU in virtual time.

What they had is what the simulated device says that kernels ran. tests/gpu/test_adversary_time.py runs the same
programs on a real GPU.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from support.vgpucap import Capped
from support.virtual import World, device_time

SECONDS = 10
#: The longest work, in seconds, that a program has under way when its cap is reached: it is paid for later.
BURST = {
    "honest": 0.001,
    "queue": 0.001,
    "event": 0.003,
    "copy": 0.003,
    "no-context": 0.005,
    "no-wait": 0.005,
    "new-streams": 0.005,
    "streams": 0.005,
    "graphs": 0.02,
    "threads": 0.02,
    "random": 0.02,
    "alternate": 0.1,
    "alternate-queued": 0.04,
    "new-contexts": 0.05,
    "short-threads": 0.04,
    "null-stream": 0.005,
    "callback": 0.003,
    "another-waits": 0.005,
    "capture": 0.005,
    "long-behind-short": 0.03,
}

#: What takes most of its time for contexts, or has something taken from it that it needs.
FOR_LITTLE = {"new-contexts"}


@pytest.mark.parametrize("cap", [10, pytest.param(50, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("way", BURST)
def test_none_has_more_than_its_cap(
    world: World, capped: Callable[..., Capped], take_time: str, way: str, cap: int
) -> None:
    slice_ = capped(program=take_time)
    slice_.cap(cap)
    process = world.start([take_time, way, "1000"], slice_.environment(), stdout=subprocess.DEVNULL)
    world.run(1)
    before = device_time(slice_.root).total
    world.run(SECONDS)
    share = (device_time(slice_.root).total - before) / SECONDS
    world.kill(process)
    assert share <= cap / 100 + 0.003 + BURST[way] / SECONDS
    assert share >= 0.6 * cap / 100 or way in FOR_LITTLE


@pytest.mark.parametrize("way", ["no-descriptors", "no-memory"])
def test_what_the_shim_lacks_is_no_way_around_it(
    world: World, capped: Callable[..., Capped], take_time: str, way: str
) -> None:
    """Launches have their share, or are denied."""
    slice_ = capped(program=take_time)
    slice_.cap(10)
    process = world.start([take_time, way, "5"], slice_.environment(), stderr=subprocess.DEVNULL)
    world.finish(process)
    assert device_time(slice_.root).total <= 0.1 * 5 + 0.03


@pytest.mark.parametrize("waits", [True, False])
def test_starting_over_is_of_no_use(
    world: World, capped: Callable[..., Capped], take_time: str, waits: bool
) -> None:
    """A kernel of 200 ms a process: the next process finds what this one did not pay for."""
    slice_ = capped(program=take_time)
    slice_.cap(10)
    began = world.now
    for _ in range(6):
        words = [take_time, "once", "1" if waits else "0"]
        process = world.start(words, slice_.environment(), stdout=subprocess.DEVNULL)
        world.finish(process)
    assert device_time(slice_.root).total <= 0.1 * (world.now - began) + 0.2 + 0.01
