"""`bench together` on a simulated driver: it measures each way, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import sys

import pytest
from support import CLEAN_ENV, REPO, run, until
from support.mps_program import compile_control
from support.vgpu import ensure_shim

pytestmark = pytest.mark.nightly  # tenants that run for real seconds


def control_daemons() -> set[str]:
    """Processes of tests/support/mps_control.py. No test beside this one has them: see nightly-builds."""
    return set(run("pgrep", "-f", "support/mps_control.py -f", check=False).stdout.split())


def test_tenants_side_by_side(stage: str, driver: str, scratch: str) -> None:
    """What was measured is not judged here: it is a busy machine's. The counts are."""
    before = control_daemons()
    ensure_shim(stage, scratch)
    compile_control(
        f"{driver}/usr/bin/nvidia-cuda-mps-control", os.path.join(REPO, "tests/support/mps_control.py")
    )
    program, kept = os.path.join(REPO, "tests/bench/together.py"), f"{scratch}/report.md"
    words = ["--root", driver, "--bin", f"{stage}/bin", "--report", kept, "-o", "json"]
    words += ["--seconds=0.3", "--warm=0.1", "--rounds=1", "--minutes=3", "--only=two,peer"]
    done = run(sys.executable, program, *words, env=CLEAN_ENV, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rates = {(row["way"], len(row["weights"])): row["rates"] for row in found["rows"]}
    assert list(rates) == [
        ("native", 1),
        *((way, 2) for way in ("native", "mps", "concurrent", "weight")),
    ], done
    assert all(rate > 0 for each in rates.values() for rate in each)
    goals = {goal["goal"]: goal for goal in found["goals"]}
    assert goals["`weight` / native, 2: steps"]["got"] > 0
    assert found["notRun"]["group `peer`"] == "PEER_SHIM names no other shim"
    with open(kept, encoding="utf-8") as file:
        assert "| 2, concurrent |" in file.read()
    until(lambda: control_daemons() <= before, lambda: f"MPS goes on: {control_daemons() - before}")
    left = run("ps", "-eo", "args").stdout
    assert f"--root={driver}" not in left and "vgpu_steps" not in left
