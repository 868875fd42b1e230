"""The end of one turn and the beginning of the next, in virtual time, with programs on one simulated GPU.

Who knows that its work ends soon gives the turn back before. What runs on then is its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest import approx
from support import CLEAN_ENV
from support.adversary_time import take_time
from support.nvcd import Place, ask
from support.rootfs import LIBS
from support.vgpucap import Worker
from support.virtual import World, device_time

MS = 1_000_000
DECODE = {"ns": 2 * MS, "batch": 1}
LEARNT = 3.5  # seconds: see test_nvcd_quantum.py
SECONDS = 6
RESTLESS = 0.999
#: Programs of tests/adversary that make the end of their work look near.
FORGE = ("alternate", "alternate-queued", "long-behind-short", "random")


def held(place: Place) -> list[int]:
    return [one["heldNs"] for one in ask(place)["devices"][0]["tenants"]]


@pytest.mark.parametrize("count", [2, 4])
def test_the_device_does_not_rest_between_turns(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World, count: int
) -> None:
    """And all of the time is charged to somebody, once."""
    timed.start(f"--root={driver}")
    for _ in range(count):
        tenant("--weight=1", "--policy=weight", **DECODE)
    world.run(LEARNT)
    before, had, since = device_time(driver).total, held(timed), world.now_ns
    world.run(SECONDS)
    passed = world.now_ns - since
    assert (device_time(driver).total - before) * 1e9 / passed >= RESTLESS
    turned = [now - then for then, now in zip(had, held(timed))]
    assert sum(turned) == approx(passed, abs=2 * MS)
    assert turned == approx([passed / count] * count, abs=3 * MS)


@pytest.mark.parametrize("way", FORGE)
def test_who_looks_near_its_end_takes_nothing_from_others(
    timed: Place,
    driver: str,
    launcher: str,
    tenant: Callable[..., Worker],
    world: World,
    way: str,
) -> None:
    timed.start(f"--root={driver}")
    honest = tenant("--weight=1", "--policy=weight", **DECODE)
    words = timed.sliced(launcher, driver, "--memory=8g", "--weight=1", "--policy=weight")
    inside = (f"{name}={value}" for name, value in world.variables().items())
    variables = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"}
    other = world.start([*words, "env", *inside, take_time(), way, "1000", "1000"], variables)
    world.run(LEARNT)
    pid = world.pid(honest.process)
    before = device_time(driver)
    world.run(SECONDS)
    after = device_time(driver)
    world.kill(other)
    assert (after.of(pid) - before.of(pid)) / SECONDS >= 0.48
