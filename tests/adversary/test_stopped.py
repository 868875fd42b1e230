"""Programs that stop their processes while a kernel runs, kill them before they go on, and start over.

Nobody in their slice knows for how long they were stopped. Kernels of 0.4 or 3 s are killed after 95 % of that, and
one of them may be under way, unpaid, when a measurement begins or ends.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from support.beside import Tenants
from support.vgpucap import Capped
from support.virtual import World, device_time

POINTS = 0.01
SHORT, LONG = 0.38, 2.85  # seconds that a kernel of each kind runs


def alone(tenants: Tenants, seconds: int) -> float:
    before = device_time(tenants.driver).total
    tenants.world.run(seconds)
    return (device_time(tenants.driver).total - before) / seconds


@pytest.mark.parametrize("cap", (10, 50))
def test_alone_it_has_its_cap(tenants: Tenants, take_time: str, cap: int) -> None:
    tenants.start(cap, take_time, "stopped", 1000, 1000)
    tenants.world.run(2)
    share = alone(tenants, 20)
    assert 0.8 * cap / 100 <= share <= cap / 100 + POINTS + SHORT / 20


def test_alone_it_has_its_cap_where_nvml_sees_it(tenants: Tenants, take_time: str) -> None:
    """It is stopped for longer than NVML takes to tell of its use."""
    tenants.start(50, take_time, "stopped-for-long", 1000, 1000)
    tenants.world.run(2)
    share = alone(tenants, 30)
    assert 0.8 * 0.5 <= share <= 0.5 + POINTS + LONG / 30


@pytest.mark.parametrize("cap", (10, 50))
def test_the_other_has_its_share(tenants: Tenants, take_time: str, work: str, cap: int) -> None:
    found = tenants.beside(work, [take_time, "stopped", 1000, 1000], cap, 8)
    assert found.share <= cap / 100 + POINTS + SHORT / 8
    assert abs(found.other - (1 - cap / 100)) <= 0.02


def test_the_other_has_most_of_its_share_beside_long_kernels(
    tenants: Tenants, take_time: str, work: str
) -> None:
    """Beside a long kernel its shim charges it for the time of both; it has no less than if nobody is killed."""
    found = tenants.beside(work, [take_time, "stopped-for-long", 1000, 1000], 10, 20)
    assert found.share <= 0.1 + POINTS
    assert found.other >= 0.8


@pytest.mark.parametrize(
    "way, cap, once",
    [("stopped", 10, 0.1), ("stopped", 50, 0.1), ("stopped-for-long", 10, 5.8), ("stopped-for-long", 50, 5.8)],
)
def test_without_nvcd_it_has_its_cap(
    world: World, capped: Callable[..., Capped], take_time: str, way: str, cap: int, once: float
) -> None:
    """Beyond that, it has some seconds once: what was charged too little is charged twice the next time."""
    slice_ = capped(program=take_time)
    slice_.cap(cap)
    process = world.start([take_time, way, "1000", "1000"], slice_.environment(), stdout=subprocess.DEVNULL)
    had = []
    for _ in range(12):
        world.run(10)
        had.append(device_time(slice_.root).total)
    world.kill(process)
    kernel = SHORT if way == "stopped" else LONG
    assert all(time <= cap / 100 * 10 * (i + 1) + once + kernel for i, time in enumerate(had))
    assert had[-1] >= 0.8 * cap / 100 * 120


def test_who_is_started_again_later_does_not_wait(
    world: World, capped: Callable[..., Capped], take_time: str
) -> None:
    """It is killed with unfinished work, and started again after 70 s, three times."""
    slice_ = capped(program=take_time)
    slice_.cap(10)
    for _ in range(4):
        before = device_time(slice_.root).total
        process = world.start(
            [take_time, "no-wait", "1000", "1000"], slice_.environment(), stdout=subprocess.DEVNULL
        )
        world.run(2)
        assert device_time(slice_.root).total - before >= 0.8 * 0.1 * 2
        world.kill(process)
        world.run(70)
