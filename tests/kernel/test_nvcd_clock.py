"""Clocks that jump, that differ from container to container, and that stand still: turns go on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.clocks import apart, jumping
from support.nvcd import PATHS, Place, ask, eventually
from support.vgpucap import Worker

POINTS = 0.05
WORDS = ("--cores=30", "--cores=70")
pytestmark = pytest.mark.nightly


def check(place: Place, workers: list[Worker], seconds: float = 1.5) -> None:
    """Both have had what they may have of so many seconds from now."""
    for worker in workers:
        worker.started()

    def held(state: Any) -> dict[int, int]:
        return {one["cores"]: one["heldNs"] for one in state["devices"][0]["tenants"]}

    first = ask(place)
    last = eventually(place, lambda state: state["now"] - first["now"] > seconds * 1e9)
    for cores in (30, 70):
        share = (held(last)[cores] - held(first)[cores]) / (last["now"] - first["now"])
        assert abs(share - cores / 100) < POINTS
    assert all(worker.result().kernels for worker in workers)


def test_a_wall_clock_that_jumps(
    place: Place, driver: str, busy: Callable[..., Worker], scratch: str
) -> None:
    """By years, at each look at it, for nvcd and for who is served by it."""
    variables = jumping(scratch, "wall")
    code = f"import sys;sys.path[:0]={PATHS};from nvc_cli.daemon import main;main('nvcd')"
    place.program = (sys.executable, "-B", "-c", code)
    daemon = place.start(f"--root={driver}", **variables)
    with open(f"/proc/{daemon.pid}/maps", encoding="ascii") as maps:
        assert "jumping_clock" in maps.read()
    check(place, [busy(word, variables=variables) for word in WORDS])


def test_clocks_of_their_own(place: Place, driver: str, busy: Callable[..., Worker]) -> None:
    """Time namespaces: the monotonic clocks of nvcd and of two containers are a year apart."""
    year = 365 * 24 * 3600
    place.program = (*apart(2 * year, fork=False), *place.program)
    place.start(f"--root={driver}")
    check(place, [busy(WORDS[0], before=apart(year, fork=False)), busy(WORDS[1])])


def test_an_nvcd_that_stands_still(place: Place, driver: str, busy: Callable[..., Worker]) -> None:
    """For longer than anybody waits for an answer: they go on without it, and come back."""
    daemon = place.start(f"--root={driver}")
    workers = [busy(word, seconds=600, trace=100).started() for word in WORDS]
    os.kill(daemon.pid, signal.SIGSTOP)
    for worker in workers:
        at, kernels = began = worker.progress()
        while at < began[0] + 4000:
            at, kernels = worker.progress()
        assert kernels > began[1]
    os.kill(daemon.pid, signal.SIGCONT)
    before = {one["key"]: one["leases"] for one in ask(place)["devices"][0]["tenants"]}

    def go_on(state: Any) -> bool:
        tenants = state["devices"][0]["tenants"]
        return all(one["processes"] and one["leases"] > before[one["key"]] + 5 for one in tenants)

    eventually(place, go_on)
    assert all(worker.stop().kernels for worker in workers)
