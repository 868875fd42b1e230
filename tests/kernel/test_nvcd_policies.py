"""The six policies, laid down one after another while two programs run: what they get of a simulated GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from support import run
from support.measured import above, below, near
from support.nvcd import Place, eventually
from support.vgpucap import Worker

POINTS = 0.06


def received(workers: list[Worker], seconds: float = 1.2) -> list[float]:
    """What each had of the GPU from now on, by the kernels of 1 ms that it launched."""
    begin = time.monotonic() * 1e3
    found = []
    for worker in workers:
        at, kernels = worker.progress()
        while at < begin:
            at, kernels = worker.progress()
        last, all = at, kernels
        while last < begin + seconds * 1e3:
            last, all = worker.progress()
        found.append((all - kernels) / (last - at))
    return found


def test_one_after_another(place: Place, driver: str, busy: Callable[..., Worker], launcher: str) -> None:
    place.start(f"--root={driver}")
    workers = [busy(f"--weight={weight}", "--policy=weight", seconds=600, trace=20) for weight in (1, 3)]
    for worker in workers:
        worker.started()

    def command(*words: str) -> None:
        run(*place.enter(launcher, f"--root={driver}", "vgpu", *words))

    def check(policy: str, wanted: tuple[float, float], *words: str) -> None:
        command("policy", "0", policy, *words)
        eventually(place, lambda state: state["devices"][0]["policy"] == policy)
        received(workers, 0.3)  # until it has settled
        got = received(workers)
        above(sum(got) / sum(wanted), 0.8, policy, got)  # the host may be busy with other things
        for share, most in zip(got, wanted):
            below(share, most + POINTS, policy, got)
            near(share / sum(got), most / sum(wanted), POINTS, policy, got)

    check("preempt", (0.5, 0.5))
    check("weight", (0.25, 0.75))
    check("soft", (0.25, 0.75))
    check("fair", (0.25, 0.25), "--max-instances=4")
    state: Any = eventually(place, lambda state: len(state["devices"][0]["tenants"]) == 2)
    for tenant, cores in zip(
        sorted(state["devices"][0]["tenants"], key=lambda one: one["weight"]), (20, 70)
    ):
        command("set", tenant["key"], f"--cores={cores}")
    check("fixed", (0.2, 0.7), "--max-instances=0")
    check("native", (0.5, 0.5))  # the last one: what is in the queues of programs has to be done first
    assert all(worker.stop().kernels for worker in workers)
