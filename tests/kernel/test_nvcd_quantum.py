"""The quantum that nvcd learns from what the shim counts, in virtual time, with programs on one simulated GPU.

Programs whose steps take 2 ms alternate step by step. Each has its share, whatever the others do.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
from pytest import approx
from support import run
from support.nvcd import Place, ask
from support.vgpucap import Worker
from support.virtual import World, device_time

from nvc.slices.model import layout

MS = 1_000_000
DECODE = {"ns": 2 * MS, "batch": 1}
LEARNT = 3.5  # seconds: a second until NVML answers, half a second until it is learnt, and what is to last
#: Arguments of tests/native/vgpu_work.c for each slice, and the least and most nanoseconds of the quantum.
MIXTURES: dict[str, tuple[list[dict[str, int]], tuple[float, float]]] = {
    "decoding": ([DECODE, DECODE], (0.8 * MS, 1.25 * MS)),
    "decoding and a queue": ([DECODE, {"ns": 5000, "batch": 0}], (0.8 * MS, 1.25 * MS)),
    "decoding and training": ([DECODE, {"ns": 10 * MS, "batch": 12}], (0.8 * MS, 1.9 * MS)),
    "training": ([{"ns": 10 * MS, "batch": 12}] * 2, (30 * MS, 40 * MS)),
    "long kernels": ([{"ns": 100 * MS, "batch": 1}] * 2, (30 * MS, 40 * MS)),
    "single kernels": ([{"ns": 5000, "batch": 1}] * 2, (10 * MS, 10 * MS)),
}
#: A kernel at a time is a million hand-overs between programs and the clock.
LONG = {"single kernels"}


def quantum(place: Place) -> int:
    return int(ask(place)["devices"][0]["quantumNs"])


def shares(world: World, driver: str, place: Place, workers: list[Worker], seconds: float) -> list[float]:
    """The part of the time for which each slice held its leases."""
    before = held(place)
    world.run(seconds)
    return [(now - then) / (seconds * 1e9) for then, now in zip(before, held(place))]


def held(place: Place) -> list[int]:
    return [one["heldNs"] for one in ask(place)["devices"][0]["tenants"]]


def steps(world: World, worker: Worker, seconds: float) -> list[float]:
    """Milliseconds from the end of one step to that of the next, by a trace of 1 ms."""
    end, found, last = world.now + seconds, [], None
    kernels = -1
    while world.now < end:
        at, count = worker.progress()
        if count != kernels:
            if last is not None:
                found.append(at - last)
            last, kernels = at, count
    return found


@pytest.mark.parametrize(
    "mixture", [pytest.param(name, marks=pytest.mark.nightly if name in LONG else ()) for name in MIXTURES]
)
def test_what_is_learnt(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World, mixture: str
) -> None:
    programs, (least, most) = MIXTURES[mixture]
    timed.start(f"--root={driver}")
    workers = [tenant("--weight=1", "--policy=weight", **program) for program in programs]
    world.run(LEARNT)
    assert least <= quantum(timed) <= most
    assert shares(world, driver, timed, workers, 3) == approx([0.5, 0.5], abs=0.02)


def test_decoding_alternates(timed: Place, driver: str, tenant: Callable[..., Worker], world: World) -> None:
    """A step waits for one of the other's and never for two, and the device hardly rests.

    By a trace of 1 ms, what takes 4 to 4.9 ms takes 4 or 5.
    """
    timed.start(f"--root={driver}")
    tenant("--weight=1", "--policy=weight", **DECODE)
    worker = tenant("--weight=1", "--policy=weight", warm=3, trace=1, **DECODE).started()
    world.run(0.5)
    before = device_time(driver).total
    begin = world.now
    took = sorted(steps(world, worker, 6))
    assert took[len(took) * 99 // 100] <= 5 and sum(took) / len(took) <= 4.1
    assert device_time(driver).total - before >= 0.98 * (world.now - begin)


def test_eight_have_their_weights(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World
) -> None:
    weights = (1, 1, 1, 2, 2, 3, 3, 3)
    timed.start(f"--root={driver}")
    workers = [tenant(f"--weight={weight}", "--policy=weight", **DECODE) for weight in weights]
    world.run(LEARNT)
    before = device_time(driver)
    world.run(3)
    after = device_time(driver)
    pids = [world.pid(one.process) for one in workers]
    found = [(after.of(pid) - before.of(pid)) / 3 for pid in pids]
    assert found == approx([weight / sum(weights) for weight in weights], abs=0.02)


def test_the_operators_quantum_is_the_longest(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World, launcher: str
) -> None:
    timed.start(f"--root={driver}")
    for _ in range(2):
        tenant("--weight=1", "--policy=weight", ns=10 * MS, batch=12)
    world.run(LEARNT)
    assert quantum(timed) > 30 * MS
    run(*timed.enter(launcher, f"--root={driver}", "vgpu", "policy", "0", "--quantum=5ms"))
    world.run(2)
    assert quantum(timed) == 5 * MS


def test_caps_keep_the_usual_quantum(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World
) -> None:
    """Under a policy that bounds slices a lease is as long as before."""
    timed.start(f"--root={driver}")
    for _ in range(2):
        tenant("--cores=50", **DECODE)
    world.run(LEARNT)
    assert quantum(timed) == 10 * MS


def ledger_of(world: World, worker: Worker) -> str:
    """The file as the process has it mapped."""
    with open(f"/proc/{world.pid(worker.process)}/maps", encoding="utf-8") as maps:
        (path,) = {m[1] for m in re.finditer(r"\s(/\S*/ledger)$", maps.read(), re.M)}
    return f"/proc/{world.pid(worker.process)}/root{path}"


@pytest.mark.parametrize("steps", [1, 1 << 20, 1 << 63])
def test_a_slice_that_writes_what_it_likes(
    timed: Place, driver: str, tenant: Callable[..., Worker], world: World, steps: int
) -> None:
    """It changes how long leases are, within their bounds, and nobody's share."""
    timed.start(f"--root={driver}")
    workers = [tenant("--weight=1", "--policy=weight", **DECODE) for _ in range(2)]
    world.run(LEARNT)
    at = layout.BUDGETS_OFFSET + layout.BUDGET.size - 64 - 8  # steps
    fd = os.open(ledger_of(world, workers[1]), os.O_RDWR)
    before = device_time(driver)
    for number in range(1, 7):
        os.pwrite(fd, struct.pack("<Q", (number * steps) & (1 << 64) - 1), at)
        world.run(0.5)
        assert MS // 2 <= quantum(timed) <= 1.25 * MS  # the honest one's steps are short
    os.close(fd)
    after = device_time(driver)
    pids = [world.pid(one.process) for one in workers]
    found: list[Any] = [(after.of(pid) - before.of(pid)) / 3 for pid in pids]
    assert found == approx([0.5, 0.5], abs=0.02)
