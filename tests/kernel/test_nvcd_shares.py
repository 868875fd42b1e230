"""The shim and nvcd together: programs in slices of one simulated GPU, whose kernels take the time they say."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV
from support.nvcd import Place, ask, eventually
from support.vgpu import ensure_shim
from support.vgpucap import Worker, compile_work

LIBS = f"/usr/lib/{os.uname().machine}-linux-gnu"
POINTS = 0.05


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_work(str(tmp_path_factory.mktemp("work")), "-O2")


@pytest.fixture
def place(stage: str, scratch: str) -> Iterator[Place]:
    ensure_shim(stage, scratch)
    made = Place(stage, scratch)
    yield made
    made.end()


@pytest.fixture
def work(place: Place, sim_root: Callable[..., str], launcher: str, program: str) -> Iterator[Any]:
    """Starts a worker in a slice; `words` are those of `vgpu run`."""
    driver = sim_root(gpus=1)
    place.start(f"--root={driver}")
    workers = []

    def start(*words: str, **arguments: object) -> Worker:
        run = place.enter(launcher, f"--root={driver}", "vgpu", "run", "--memory=8g", *words, "--", program)
        wanted = {"ns": 1000000, "batch": 0, "warm": 0.7, "seconds": 2, **arguments}
        variables = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"}
        workers.append(Worker(run[0], variables, *run[1:], **wanted))
        return workers[-1]

    yield start
    for worker in workers:
        if worker.process.poll() is None:
            worker.kill()


def shares(place: Place, *workers: Worker) -> list[float]:
    """The part of the time that each slice had the GPU, in the order of their cores or weights, all being busy."""
    for worker in workers:
        worker.started()
    first = ask(place)
    last = eventually(place, lambda state: state["now"] - first["now"] > 1.5e9)
    before = {tenant["key"]: tenant["heldNs"] for tenant in first["devices"][0]["tenants"]}
    held = [
        ((tenant["cores"] or 0, tenant["weight"]), tenant["heldNs"] - before[tenant["key"]])
        for tenant in last["devices"][0]["tenants"]
    ]
    whole = last["now"] - first["now"]
    assert sum(time for _, time in held) > 0.9 * whole
    return [time / whole for _, time in sorted(held)]


def test_percentages(place: Place, work: Any) -> None:
    low, high = work("--cores=30"), work("--cores=70")
    assert shares(place, low, high) == [pytest.approx(0.3, abs=POINTS), pytest.approx(0.7, abs=POINTS)]
    assert high.result().rate > 1.2 * low.result().rate


def test_weights(place: Place, work: Any) -> None:
    workers = [work(f"--weight={weight}", "--policy=weight", seconds=3) for weight in (1, 2, 4)]
    assert shares(place, *workers) == [pytest.approx(weight / 7, abs=POINTS) for weight in (1, 2, 4)]
    rates = [worker.result().rate for worker in workers]
    assert rates[0] < rates[1] < rates[2]


def test_nobody_fails_when_nvcd_is_killed(place: Place, work: Any) -> None:
    """Again and again; afterwards they share as before."""
    workers = [work("--policy=preempt", seconds=4, warm=0.3) for _ in range(2)]
    for worker in workers:
        worker.started()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert place.daemon is not None
        place.daemon.kill()
        place.start(*place.words)
    results = [worker.result() for worker in workers]
    assert min(result.rate for result in results) > 0.3 * sum(result.rate for result in results)
    assert ask(place)["messages"] > 0
