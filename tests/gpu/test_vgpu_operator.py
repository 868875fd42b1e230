"""What an operator does with slices on a real driver: measure, run, look, change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest
from support import GIB, MIB, STAGE, gpus, run
from support.vgpu import cli

pytestmark = pytest.mark.gpu
NVC = os.path.join(STAGE, "bin/nvc-cli")
SPIN = os.path.join(STAGE, "bin/nvc-spin")


def on_gpu() -> str:
    """The option for the GPU of the tests."""
    return f"--device={gpus.uuid()}"


def test_what_a_context_takes(measured: Callable[[str, object], None]) -> None:
    found = json.loads(cli(NVC, "calibrate", on_gpu(), "--format=json").stdout)["measurements"]
    for one in found:
        measured(f"context of {one['device']}, MiB", one["context"] / MIB)
        measured(f"first module of {one['device']}, MiB", one["module"] / MIB)
        times = ", ".join(str(one[name] / 1e6) for name in ("making", "lasts", "change"))
        measured(f"time of a context of {one['device']}, for how long it is made, of a change, ms", times)
        assert 50 * MIB < one["context"] < 2 * GIB and one["module"] < GIB
        assert one["making"], "what a context and a change take of others' time was not measured"


def test_a_program_without_a_container() -> None:
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    shown = cli(NVC, "run", "--memory=10GiB", "--", *query).stdout.split()
    assert all(abs(int(total) - 10240) <= 2 for total in shown)
    slice_ = (NVC, "run", on_gpu(), "--memory=10GiB", "--", SPIN, "--seconds=0.2")
    assert "9.00 of 10.00 GiB taken" in cli(*slice_, "--memory=9GiB").stdout
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in cli(*slice_, "--memory=10GiB", check=False).stderr
    assert int(run(*query).stdout.split()[0]) > 10240
