"""A sample of the faults that `make faults` tries, and some of them in real containers: nothing half-done stays."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest
from support import CLEAN_ENV, EXPLORE, REPO, run
from support.builds import kept, make
from support.faults import SCENARIOS, Call, build_tool, judge_text, read_calls, read_end
from support.plans import mounts, snapshot

BASIC = ("--device=all", "--compute", "--utility")
SAMPLE = 14  # faults of each scenario, about 0.3 s each


@pytest.fixture(scope="module")
def tool() -> str:
    return kept("faults", build_tool)


@pytest.fixture(scope="module")
def prefix(stage: str) -> str:
    """An installation: the stage loads its modules from hundreds of files."""
    if "NVC_STAGE" in os.environ:
        return stage
    path = os.path.join(REPO, "build/prefix-faults")
    make("install", f"PREFIX={path}", "DESTDIR=")
    return path


def offset(stride: int) -> int:
    """Where to begin: always the same, or anywhere where tests explore."""
    return random.randrange(stride) if EXPLORE else 0


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_some_faults(scenario: str, tool: str, prefix: str, sim_root: Any, scratch: str) -> None:
    stride = 5000 // SAMPLE
    words = (prefix, scenario, f"{offset(stride)}:0:{stride}", tool, sim_root(gpus=2), scratch)
    env = {**CLEAN_ENV, "PYTHONPATH": f"{REPO}:{REPO}/tests"}
    done = run(sys.executable, "-m", "support.faults_run", *words, check=False, env=env, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def moments(calls: list[Call]) -> list[str]:
    """Faults for the applier, from its first mount to its last word."""
    (applier,) = {call.process for call in calls if call.name == "setns"}
    numbers = [call for call in calls if call.process == applier]
    chosen = [
        next(call for call in numbers if call.name == name) for name in ("fsmount", "mkdirat", "symlinkat")
    ]
    chosen += [call for call in numbers if call.name == "move_mount"][9::12]
    return [
        f"{call.process}:{call.number}:{('first', 'kill', 'tree')[at % 3]}" for at, call in enumerate(chosen)
    ]


@pytest.mark.nightly
def test_real_containers(
    runc_bundle: Any, rootfs: Any, sim_root: Any, prefix: str, tool: str, scratch: str
) -> None:
    command = [os.path.join(prefix, "bin/nvc-cli"), f"--root={sim_root(gpus=2)}", "configure"]
    log = f"{scratch}/calls"

    def start(container: Any, *fault: str) -> subprocess.CompletedProcess[str]:
        words = (*BASIC, f"--pid={container.pid}", container.bundle.rootfs)
        return run(tool, *(("-f", *fault) if fault else ("-l", log)), *command, *words, check=False)

    for _ in range(2):  # the first finds the driver, which the others need not do
        with runc_bundle(rootfs()).created("runc") as container:
            assert start(container).returncode == 0
    calls = list(read_calls(log))
    faults = moments(calls)
    assert len(faults) > 4
    for fault in faults:
        bundle = runc_bundle(rootfs())
        with bundle.created("runc") as container:
            before = snapshot(bundle.rootfs), mounts(container.pid)
            done = start(container, fault)
            _, status, left = read_end(done.stdout)
            assert done.returncode == 0 and status and not left, (fault, done.stderr)
            if not fault.endswith("tree"):
                assert not list(judge_text(status, done.stderr)), (fault, done.stderr)
                assert (snapshot(bundle.rootfs), mounts(container.pid)) == before, fault
            again = start(container)
            assert (again.stderr, again.stdout) == ("", "end 0 0\n"), (fault, again)
            container.start()
            seen = container.exec("nvidia-smi -L | wc -l; ls /dev | grep -c nvidia").stdout.split()
            assert seen == ["2", "5"], (fault, seen)
    for name in ("ftruncate", "unlinkat"):  # the last thing that is done: it had said that all is well
        bundle = runc_bundle(rootfs())
        call = [call for call in calls if call.name == name][-1]
        with bundle.created("runc") as container:
            done = start(container, f"{call.process}:{call.number}:kill")
            assert done.stderr == "" and read_end(done.stdout)[1:] == (0, 0), (name, done)
            assert not os.path.exists(f"{bundle.rootfs}/etc/.nvc-ld.so.cache"), name
