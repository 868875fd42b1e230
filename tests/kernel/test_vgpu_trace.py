"""`vgpu trace`: who had the GPU, by the switch log of a simulated resource manager."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support import CLEAN_ENV
from support.nvcd import Place, eventually
from support.simrm import Served
from support.vgpucap import Worker

pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=1)]


@pytest.fixture
def trace(place: Place, launcher: str, driver: str, scratch: str) -> Callable[..., Any]:
    """`trace()`: what it writes; `trace(1)`: what it says where it fails."""

    def call(code: int = 0) -> Any:
        path = f"{scratch}/trace.json"
        words = place.enter(launcher, f"--root={driver}", "vgpu", "trace", f"--output={path}")
        done = subprocess.run(words, env=CLEAN_ENV, text=True, capture_output=True)
        assert done.returncode == code, done.stderr
        if code:
            return done.stderr
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    return call


def test_who_had_the_gpu(
    served: Served, place: Place, driver: str, busy: Callable[..., Worker], trace: Callable[..., Any]
) -> None:
    """Two slices that work, each a row of the GPU, which have no more than all of its time together."""
    place.start(f"--root={driver}")
    for name in ("one", "two"):
        busy("--policy=weight", f"--name={name}", seconds=600)
    eventually(place, lambda s: all(d["time"] == "by the driver" for d in s["devices"]) and bool(s["devices"]))
    eventually(place, lambda s: min([one["hadNs"] for one in s["devices"][0]["had"]] or [0]) > 10**8)
    events = trace()["traceEvents"]
    regions = [one for one in events if one["ph"] == "X"]
    assert {one["name"] for one in regions} >= {"one", "two"}
    whole = max(one["ts"] + one["dur"] for one in regions)
    assert 0 < sum(one["dur"] for one in regions) <= whole + 1


def test_without_nvcd(trace: Callable[..., Any]) -> None:
    assert "ask nvcd" in trace(1)


def test_where_the_shim_keeps_time(
    place: Place, driver: str, busy: Callable[..., Worker], trace: Callable[..., Any]
) -> None:
    """There is no log then."""
    place.start(f"--root={driver}")
    busy("--cores=20", seconds=600)
    eventually(place, lambda s: any("by the shim" in one["time"] for one in s["devices"]))
    assert "trace GPUs: the shim keeps time here; `nvcd --state` says why" in trace(1)
