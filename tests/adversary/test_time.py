"""Programs that try to have more of a GPU's time than their cap, on a simulated GPU in virtual time.

What they had is what the simulated device says that kernels ran. tests/gpu/test_adversary_time.py runs the same
programs on a real GPU.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from support.adversary_time import WAYS, Way
from support.vgpucap import Capped
from support.virtual import World, device_time

SECONDS = 10
POINTS = 0.003  # what the credit of one period is in that time, and more


def cases() -> list[object]:
    """Each way at 10 %, and at night at 50 %."""
    nightly = pytest.mark.nightly
    return [
        pytest.param(way, cap, id=f"{way.name}-{cap}", marks=[nightly] if way.nightly or cap != 10 else [])
        for cap in (10, 50)
        for way in WAYS
    ]


@pytest.mark.parametrize("way, cap", cases())
def test_none_has_more_than_its_cap(
    world: World,
    capped: Callable[..., Capped],
    take_time: str,
    way: Way,
    cap: int,
    before: tuple[str, ...] = (),
) -> None:
    slice_ = capped(program=take_time)
    slice_.cap(cap)
    words = [*before, take_time, way.name, "1000", "1000"]
    process = world.start(words, slice_.environment(), stdout=subprocess.DEVNULL)
    world.run(1)

    def had() -> float:
        return slice_.charged() if way.copies else device_time(slice_.root).total

    first, seconds = had(), 1 if way.copies else SECONDS  # they are short, and computed in earnest
    world.run(seconds)
    share = (had() - first) / seconds
    world.kill(process)
    assert share <= cap / 100 + (POINTS * SECONDS + way.burst) / seconds
    assert share >= way.least * cap / 100


@pytest.mark.parametrize("cap", [10, 25, 50])
def test_long_kernels_behind_short_ones_are_few(
    world: World, capped: Callable[..., Capped], take_time: str, cap: int
) -> None:
    """Of 20 ms: it never has more than 16 of them, or 1.6 for each percent of its cap, that it did not pay for."""
    slice_ = capped(program=take_time)
    slice_.cap(cap)
    words = [take_time, "long-behind-many", "1000", "1000"]
    process = world.start(words, slice_.environment(), stdout=subprocess.DEVNULL)
    ahead = most = before = 0.0
    for _ in range(100):
        world.run(0.1)
        had = device_time(slice_.root).total
        ahead = max(0, ahead + had - before - 0.1 * cap / 100)
        most, before = max(most, ahead), had
    world.kill(process)
    assert 0.1 < most <= max(16, 1.6 * cap) * 0.02 + 0.03  # with the one that runs, and credit


@pytest.mark.parametrize("seconds", [-1000, 1000])
def test_a_clock_that_can_no_longer_be_read(
    world: World, capped: Callable[..., Capped], take_time: str, seconds: int
) -> None:
    """In a time namespace, whose /proc is out of reach after chroot(2): the shim's clock does not jump."""
    before = ("unshare", "--time", f"--monotonic={seconds}", "--fork", "--kill-child")
    (way,) = (way for way in WAYS if way.name == "another-root")
    test_none_has_more_than_its_cap(world, capped, take_time, way, 10, before)


@pytest.mark.parametrize("waits", [True, False])
def test_starting_over_is_of_no_use(
    world: World, capped: Callable[..., Capped], take_time: str, waits: bool
) -> None:
    """A kernel of 200 ms a process: the next process finds what this one did not pay for."""
    slice_ = capped(program=take_time)
    slice_.cap(10)
    began = world.now
    for _ in range(6):
        words = [take_time, "once", "1" if waits else "0", "1000"]
        process = world.start(words, slice_.environment(), stdout=subprocess.DEVNULL)
        world.finish(process)
    assert device_time(slice_.root).total <= 0.1 * (world.now - began) + 0.2 + 0.01


@pytest.mark.parametrize("way", [way.name for way in WAYS if way.copies])
def test_what_memory_takes_counts_as_it_does_in_a_queue(
    world: World, capped: Callable[..., Capped], take_time: str, way: str
) -> None:
    """By the program's own count, which is all that a real GPU has of it: no more than its slice is charged."""
    slice_ = capped(program=take_time)
    slice_.cap(50)
    used = float(world.output([take_time, way, "0.1", "1000"], slice_.environment()).split()[0])
    assert 0.3 <= used / (1000 * slice_.charged()) <= 1.02


def test_a_mark_costs_calls_of_the_driver_behind_a_wait_alone(
    world: World, capped: Callable[..., Capped], take_time: str
) -> None:
    """A call takes 1 us of virtual time, a look at a clock 50 ns: a launch is a call, a mark two more."""
    slice_ = capped(program=take_time)
    slice_.cap(50)
    found = world.output([take_time, "costs", "0", "1000"], slice_.environment()).split()
    assert [int(word) // 1000 for word in found] == [1, 3, 1]
