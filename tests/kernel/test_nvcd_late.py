"""Processes that never wait, with kernels far longer than a turn, beside a program that waits for its steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.nvcd import Place, ask
from support.vgpucap import Worker
from support.virtual import World, device_time

MS = 1_000_000
DECODE = {"ns": 2 * MS, "batch": 1}


@pytest.mark.parametrize("policy", ["weight", "first"])
def test_six_processes_that_never_wait(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World, policy: str
) -> None:
    """Beside their kernels the turns of the other one take seven times as long. It is not late because of that."""
    words = f"--policy={policy}", "--weight=1"
    timed.start(f"--root={driver}")
    loop = tenant(*words, **DECODE)
    crowd = 'for _ in 1 2 3 4 5; do "$0" "$@" & done; exec "$0" "$@"'
    tenant(*words, inside=("sh", "-c", crowd), ns=20 * MS, batch=0)
    world.run(2)
    pid, before = world.pid(loop.process), device_time(driver)
    world.run(6)
    after = device_time(driver)
    assert (after.of(pid) - before.of(pid)) / 6 >= 0.45
    assert (after.total - before.total) / 6 >= 0.99


def test_rests_that_are_short_cost_nothing(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World
) -> None:
    """What the six have too much is owed to who rests for 1.5 ms after each step, too."""
    words = "--policy=weight", "--weight=1"
    timed.start(f"--root={driver}")
    tenant(*words, rest=1500, **DECODE)
    crowd = 'for _ in 1 2 3 4 5; do "$0" "$@" & done; exec "$0" "$@"'
    tenant(*words, inside=("sh", "-c", crowd), ns=20 * MS, batch=0)
    world.run(2)
    before = ask(timed)["devices"][0]["tenants"][0]["heldNs"]
    world.run(6)
    assert (ask(timed)["devices"][0]["tenants"][0]["heldNs"] - before) / 6e9 >= 0.45


def test_who_rests_does_not_keep_the_device_idle(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World
) -> None:
    """Its leases are shorter than the time after which the shim takes it for idle: an unused one is the last."""
    words = "--policy=weight", "--weight=1"
    timed.start(f"--root={driver}")
    rests = tenant(*words, rest=50000, **DECODE)
    tenant(*words, ns=MS, batch=0)
    world.run(3.5)
    pid, before = world.pid(rests.process), device_time(driver)
    world.run(4)
    after = device_time(driver)
    assert (after.total - before.total) / 4 >= 0.95
    assert (after.of(pid) - before.of(pid)) / 4 >= 0.034  # of 0.038 alone
