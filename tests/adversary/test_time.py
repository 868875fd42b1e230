"""Programs that try to have more of a GPU's time than their cap, on a simulated GPU in virtual time.

What they had is what the simulated device says that kernels ran. tests/gpu/test_adversary_time.py runs the same
programs on a real GPU.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from support.adversary_time import WAYS, Way, lengths
from support.clocks import apart
from support.vgpucap import FIXED, PERIOD, Capped
from support.virtual import World, device_time

SECONDS = 5
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


@pytest.mark.parametrize("cap, making", [(5, 0), (10, 0), (10, 36), (10, 4)])
def test_contexts_are_as_many_as_the_cap_can_pay(
    world: World, capped: Callable[..., Capped], take_time: str, cap: int, making: int
) -> None:
    """Each costs the milliseconds that the host has measured, or 12. Without a cap: 11 a second."""
    slice_ = capped(program=take_time)
    slice_.limit(8 << 30, cores=cap, policy=FIXED, making_time=making * 1_000_000)
    variables = {**slice_.environment(), "NVC_SIM_SWITCH_NS": "150000"}
    process = world.start([take_time, "only-contexts", "1000", "1000"], variables, stdout=subprocess.DEVNULL)
    world.run(1)
    before, first = slice_.charged(), device_time(slice_.root).total
    world.run(5)
    charged = (slice_.charged() - before) / 5
    contexts = (device_time(slice_.root).total - first) / 320e-6  # 32 kernels of 10 us each
    world.kill(process)
    cost = (making or 12) / 1000
    assert charged <= cap / 100 + cost / 5 + POINTS
    most = min(5 * cap / 100 / cost, 5 * 11)
    assert 0.8 * most - 1 <= contexts <= most + 1


@pytest.mark.parametrize("cap, processes", [(10, 1), (25, 1), (50, 1), (90, 1), (10, 4), (10, 12)])
def test_long_kernels_behind_short_ones_are_few(
    world: World, capped: Callable[..., Capped], take_time: str, cap: int, processes: int
) -> None:
    """Of 20 ms: in any time they have at most their cap, a hundredth of 10 s, and saved credit."""
    slice_ = capped(program=take_time)
    slice_.cap(cap)
    words = [take_time, "long-behind-many", "1000", "1000"]
    started = [world.start(words, slice_.environment(), stdout=subprocess.DEVNULL) for _ in range(processes)]
    ahead = most = before = 0.0
    for _ in range(40):
        world.run(0.1)
        had = device_time(slice_.root).total
        ahead = max(0, ahead + had - before - 0.1 * cap / 100)
        most, before = max(most, ahead), had
    for process in started:
        world.kill(process)
    assert 0.01 < most <= 0.1 + 2 * PERIOD * cap / 100


@pytest.mark.parametrize("cap", [10, 50, 75])
def test_long_kernels_after_a_proof_are_many_once(
    world: World, capped: Callable[..., Capped], take_time: str, cap: int
) -> None:
    """Who had short kernels for a twentieth of a second may have more, until they are long for the first time."""
    slice_ = capped(program=take_time)
    slice_.cap(cap)
    words = [take_time, "long-after-proof", "1000", "1000"]
    process = world.start(words, slice_.environment(), stdout=subprocess.DEVNULL)
    ahead = before = 0.0
    tops: list[float] = []  # of each time that it was beyond its cap
    for _ in range(2500 // cap):
        world.run(0.1)
        had = device_time(slice_.root).total
        was, ahead = ahead, max(0, ahead + had - before - 0.1 * cap / 100)
        before = had
        if ahead > 0.12:
            tops = [*tops[:-1], max(tops[-1], ahead)] if was > 0.12 else [*tops, ahead]
    world.kill(process)
    under_way = max(16, 1.6 * cap)
    assert len(tops) == 1 and tops[0] <= under_way * 0.02 * (100 - cap) / 100 + 0.1


def test_threads_that_wait_do_not_keep_each_other_from_credit(
    world: World, capped: Callable[..., Capped], take_time: str
) -> None:
    """Many look at it within 100 ns. What these bring is not lost, else all look again and again, for nothing."""
    slice_ = capped(program=take_time)
    slice_.cap(50)
    words = [take_time, "many-threads", "1000", "1000"]
    process = world.start(words, slice_.environment(), stdout=subprocess.DEVNULL)
    for _ in range(15):
        before = world.switches
        world.run(0.1)
        assert world.switches - before < 60_000  # 17,443 at most; 500,000 and more where credit is lost
    world.kill(process)


@pytest.mark.parametrize("seconds", [-2, 1000])
def test_a_clock_that_can_no_longer_be_read(
    world: World, capped: Callable[..., Capped], take_time: str, seconds: int
) -> None:
    """In a time namespace, whose /proc is out of reach after chroot(2): the shim's clock does not jump."""
    (way,) = (way for way in WAYS if way.name == "another-root")
    test_none_has_more_than_its_cap(world, capped, take_time, way, 10, apart(seconds))


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
    bare = {**slice_.environment(), "LD_LIBRARY_PATH": slice_.real_directory()}
    length = lengths(world.output([take_time, "lengths", "0"], bare))[way]
    alone = world.output([take_time, way, "0.1", f"1000,{length}"], bare).split()
    assert 0.85 <= float(alone[0]) / float(alone[1]) <= 1.01  # it waits now and then
    slice_.cap(50)
    used = float(world.output([take_time, way, "0.1", f"1000,{length}"], slice_.environment()).split()[0])
    assert 0.3 <= used / (1000 * slice_.charged()) <= 1.02


def test_a_copy_that_changes_while_it_is_asked_for_counts(
    world: World, capped: Callable[..., Capped], take_time: str
) -> None:
    """It is said to be from the host's memory until the call has read a part of it, and then from the device's."""
    charged = []
    for way in ("planes", "changed-planes"):
        slice_ = capped(program=take_time)
        slice_.cap(50)
        before = slice_.charged()
        world.output([take_time, way, "1", "1000"], slice_.environment())
        charged.append(slice_.charged() - before)
    assert charged[1] >= charged[0] > 0.01


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


def test_what_had_its_ledger_cut_ends(world: World, capped: Callable[..., Capped], take_time: str) -> None:
    """It is refused again and again, and says by what and how often."""
    slice_ = capped(program=take_time)
    slice_.cap(50)
    said = world.output([take_time, "cut-ledger", "1000", "1000"], slice_.environment()).split(None, 4)
    assert 10 <= float(said[0]) <= 25 and "Retain" in said[4] and said[4].strip().endswith("2 times")


def test_a_mark_costs_calls_of_the_driver_behind_a_wait_alone(
    world: World, capped: Callable[..., Capped], take_time: str
) -> None:
    """A call takes 1 us of virtual time, a look at a clock 50 ns: a launch is a call, a mark two more."""
    slice_ = capped(program=take_time)
    slice_.cap(50)
    found = world.output([take_time, "costs", "0", "1000"], slice_.environment()).split()
    assert [int(word) // 1000 for word in found] == [1, 3, 1]
