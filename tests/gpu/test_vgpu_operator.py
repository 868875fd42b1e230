"""What an operator does with slices on a real driver: measure, run, look, change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from support import CLEAN_ENV, GIB, MIB, STAGE, gpus, run
from support.bundle import Bundle
from support.configure import Configure
from support.vgpu import cli, listed

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


def test_as_an_ordinary_user(scratch: str) -> None:
    run("cp", SPIN, f"{scratch}/spin")  # the stage may be closed to others
    words = ("--user=65534:65534", "--", f"{scratch}/spin", "--memory=10GiB")
    done = cli(NVC, "run", on_gpu(), "--memory=10GiB", *words, check=False)
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in done.stderr


def test_the_shim_is_proved_active() -> None:
    done = cli(NVC, "run", on_gpu(), "--memory=10GiB", "--", NVC, "vgpu", "check", "--format=json")
    assert json.loads(done.stdout)["processes"][0]["status"] == "active"
    here = run(NVC, "vgpu", "check", env=CLEAN_ENV, check=False)
    assert here.returncode == 1 and "reached without the shim" in here.stdout


def test_a_container_is_seen_and_changed(runc_bundle: Callable[..., Bundle]) -> None:
    made: Any = runc_bundle()
    with made.created("runc") as container:
        container.start()
        words = (on_gpu(), "--compute", "--utility", "--vgpu-memory=10GiB")
        Configure(NVC, "/")(container.pid, made.rootfs, words)
        seen = listed(NVC, container.pid)
        assert seen["devices"][0]["limit"] == 10 * GIB and seen["devices"][0]["used"] == 0
        assert "10240MiB" in container.exec("nvidia-smi").stdout
        cli(NVC, "set", seen["name"], "--memory=20GiB")
        assert "20480MiB" in container.exec("nvidia-smi").stdout
        assert seen["name"] in cli(NVC, "top", "--once").stdout
        assert cli(NVC, "check", seen["name"], check=False).stdout.count("not covered") == 0
