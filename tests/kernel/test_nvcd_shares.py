"""The shim and nvcd together, in virtual time: what programs in slices of one simulated GPU have of it, by policy.

What the device's own account says, after a second for nvcd to learn what turns cost. A turn's end is up to a kernel
of 1 ms and some switching late: POINTS is that of turns of 10 ms, of which each has its share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pytest import approx
from support import run
from support.nvcd import Place, ask
from support.vgpucap import Worker
from support.virtual import World, device_time

POINTS = 0.01
#: Words of `vgpu run` for each slice, and the part of the GPU that each is to have.
MIXTURES = {
    "fixed": (("--cores=30", "--cores=70"), (0.3, 0.7)),
    "fixed, and what nobody has": (("--cores=20", "--cores=50"), (0.2, 0.5)),
    "first": (("--policy=first",) * 2, (0.5, 0.5)),
    "weight": (tuple(f"--weight={weight}" for weight in (1, 2, 4)), (1 / 7, 2 / 7, 4 / 7)),
}


def shares(world: World, driver: str, workers: Sequence[Worker], seconds: float = 5) -> list[float]:
    """The part of the GPU's time that each has from now on."""
    before = device_time(driver)
    world.run(seconds)
    after = device_time(driver)
    pids = [world.pid(one.process) for one in workers]
    return [(after.of(pid) - before.of(pid)) / seconds for pid in pids]


@pytest.mark.parametrize("mixture", MIXTURES)
def test_policies_of_slices(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World, mixture: str
) -> None:
    words, wanted = MIXTURES[mixture]
    timed.start(f"--root={driver}")
    workers = [tenant(word) for word in words]
    world.run(1)
    assert shares(world, driver, workers) == approx(list(wanted), abs=POINTS)


@pytest.mark.parametrize("weights", [(1, 1), (1, 15)])
def test_kernels_as_long_as_a_turn(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World, weights: tuple[int, int]
) -> None:
    """Nobody keeps the device into another's turn, and what one waits for is not lost."""
    timed.start(f"--root={driver}")
    workers = [tenant(f"--weight={weight}", "--policy=weight", ns=10_000_000) for weight in weights]

    def late() -> int:
        return sum(one["late"] for one in ask(timed)["devices"][0]["tenants"])

    world.run(0.1)
    # Each once, while nothing is known of its kernels. And 15 once more, if its first turn is the second one: it
    # learns less of them beside the other's late ones. Who is first is a tie, which microseconds decide.
    at_first = late()
    assert at_first <= len(weights) + 1
    world.run(0.9)
    wanted = [weight / sum(weights) for weight in weights]
    assert shares(world, driver, workers) == approx(wanted, abs=POINTS)
    assert late() == at_first


def test_nvml_is_asked_twice_a_second(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World
) -> None:
    """Each answer is acted on at once: so what it shows of memory binds within a second."""
    timed.start(f"--root={driver}")
    tenant("--cores=30")
    world.run(2)
    before = ask(timed)["nvml"]["answers"]
    world.run(30)
    assert ask(timed)["nvml"]["answers"] - before in (59, 60, 61)


def test_policies_one_after_another(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World, launcher: str
) -> None:
    """All of them, set for a device while two programs run."""
    timed.start(f"--root={driver}")
    workers = [tenant(f"--weight={weight}", "--policy=weight") for weight in (1, 3)]

    def command(*words: str) -> None:
        run(*timed.enter(launcher, f"--root={driver}", "vgpu", *words))

    def check(policy: str, wanted: tuple[float, float], *words: str) -> None:
        command("policy", "0", policy, *words)
        world.run(2)  # nvcd looks each second
        assert ask(timed)["devices"][0]["policy"] == policy
        assert shares(world, driver, workers) == approx(list(wanted), abs=POINTS), policy

    check("first", (0.5, 0.5))
    check("weight", (0.25, 0.75))
    check("soft", (0.25, 0.75))
    check("fair", (0.25, 0.25), "--max-instances=4")
    tenants = sorted(ask(timed)["devices"][0]["tenants"], key=lambda one: one["weight"])
    for found, cores in zip(tenants, (20, 70)):
        command("set", found["key"], f"--cores={cores}")
    check("fixed", (0.2, 0.7), "--max-instances=0")
    check("native", (0.5, 0.5))


def test_what_an_idle_one_leaves(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World
) -> None:
    """It gives its turn back before the end, and is skipped from then on."""
    timed.start(f"--root={driver}")
    low = tenant("--weight=3", "--policy=weight")
    high = tenant("--weight=7", "--policy=weight", idle=1000)

    def held() -> dict[int, Any]:
        return {one["weight"]: one["heldNs"] for one in ask(timed)["devices"][0]["tenants"]}

    world.run(3)
    before = held()
    assert shares(world, driver, [low, high]) == approx([1, 0], abs=POINTS)
    assert held()[7] == before[7]
