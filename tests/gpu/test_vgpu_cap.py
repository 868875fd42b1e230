"""Caps on a real GPU, one program: fixed work per second beside that without the shim.

The target is min(1, cap / u) of what the program does alone, u being the share of the time that it keeps the
device busy then. One GPU, that nobody else uses meanwhile. test_vgpu_cap_beside.py has caps beside others.
"""

from __future__ import annotations

import os

import pytest
from support.gpucap import CAPS, Load, Measured, Sliced, check, rate_between_kernels

pytestmark = pytest.mark.gpu


def test_c1_kernels_of_a_millisecond(sliced: Sliced, measured: Measured) -> None:
    check(Load(sliced, "1 ms, queued", ns=1000000, batch=0), CAPS, 2, measured)


def test_c2_launch_and_wait(sliced: Sliced, measured: Measured) -> None:
    check(Load(sliced, "1 ms, each waited for", ns=1000000, batch=1), (10, 50, 90), 2, measured)


def test_c3_kernels_of_100_us(sliced: Sliced, measured: Measured) -> None:
    check(Load(sliced, "100 us, four at a time", ns=100000, batch=4), (25, 75), 2, measured)


def test_c4_kernels_of_half_a_second(sliced: Sliced, measured: Measured) -> None:
    seconds = float(os.environ.get("NVC_LONG_SECONDS", "12"))
    words = {"ns": 500000000, "rounds": sliced.rounds(500000000), "batch": 1, "trace": 2}
    alone = sliced.native(**words, seconds=60, warm=0.6).started()
    native = rate_between_kernels(alone, 2.6)
    alone.kill()
    wrong = []
    for cap in (25, 50):
        sliced.cap(cap)
        worker = sliced.worker(**words, seconds=3600, warm=1.6).started()
        share = 100 * rate_between_kernels(worker, seconds) / native
        worker.kill()
        measured("500 ms: cap, got, seconds", f"{cap} %, {share:.2f} %, {seconds:.0f}")
        if abs(share - cap) > 2:
            wrong.append((cap, share))
    assert wrong == []


def test_c5_persistent_kernels(sliced: Sliced, measured: Measured) -> None:
    check(Load(sliced, "20 ms on all processors", ns=20000000, grid=132, batch=0), (25, 75), 3, measured)


def test_c6_a_huge_grid(sliced: Sliced, measured: Measured) -> None:
    sliced.cap(50)
    got = sliced.work(rounds=1, grid=1 << 28, batch=1, seconds=2, warm=1)
    measured("2^28 blocks at 50 %: longest launch, ms", f"{got.longest:.1f}")
    assert got.kernels > 0


@pytest.mark.parametrize("kind", ["ex", "coop"])
def test_c7_c8_every_kind_of_launch(sliced: Sliced, measured: Measured, kind: str) -> None:
    check(Load(sliced, f"1 ms, {kind}", ns=1000000, batch=0, kind=kind), (50,), 2, measured)


def test_c9_graphs(sliced: Sliced, measured: Measured) -> None:
    load = Load(sliced, "graph of 1000 kernels of 5 us", ns=5000, kind="graph", nodes=1000, batch=4)
    check(load, CAPS, 2, measured)
    load = Load(sliced, "graph of 20 kernels of 5 us, waited for", ns=5000, kind="graph", nodes=20, batch=1)
    check(load, (25, 50), 3, measured)
