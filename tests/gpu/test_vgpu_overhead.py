"""What the shim costs beside the driver alone: the start, a launch, an allocation, and what it does not touch.

Runs alternate, and each figure is the median of its runs: a machine's own noise is the most of a single one.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

import pytest
from support import STAGE, need, run
from support.realslice import RealSlice, plain_environment

pytestmark = pytest.mark.gpu
HERE = os.path.dirname(os.path.abspath(__file__))
NVC = os.path.join(STAGE, "bin/nvc-cli")
RUNS = 9


@pytest.fixture(scope="module")
def times(slice_: RealSlice) -> dict[str, tuple[float, float]]:
    """By name: nanoseconds with the driver alone, and with the shim."""
    program = os.path.join(slice_.root, "vgpu_time")
    run(need("gcc"), "-O2", "-o", program, f"{HERE}/vgpu_time.c", "-ldl")
    figures: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(RUNS):
        for kind, words in enumerate(([program], [NVC, "vgpu", "run", "--memory=10GiB", "--", program])):
            for line in run(*words, env=plain_environment(), timeout=120).stdout.splitlines():
                name, value = line.split()
                figures.setdefault(name, ([], []))[kind].append(float(value))
    return {name: (statistics.median(a), statistics.median(b)) for name, (a, b) in figures.items()}


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("start", 5e6),
        ("launch", 200),
        ("small", 1000),
        ("large", 3000),
        ("copy", 200),
        ("record", 100),
    ],
)
def test_longer_by(
    times: dict[str, tuple[float, float]], name: str, most: float, measured: Callable[[str, object], None]
) -> None:
    alone, with_shim = times[name]
    measured(
        f"{name}: ns alone, with the shim, longer by",
        f"{alone:.0f}, {with_shim:.0f}, {with_shim - alone:.0f}",
    )
    assert with_shim - alone <= most + alone / 20  # what one run differs from the next
