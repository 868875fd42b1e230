"""What `vgpu suspend` refuses, on a simulated GPU: the slice runs on as before."""

from __future__ import annotations

import signal

import pytest
from support.checkpoint import calls
from support.nvcd import Place
from support.nvcd_programs import get
from support.rootfs import LIBS
from support.suspended import Start, cli, state

pytestmark = pytest.mark.driver(gpus=1)


def test_what_the_driver_refuses(place: Place, launcher: str, holder: Start) -> None:
    one = holder(100, "managed")
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert done.returncode == 1 and "cuCheckpointProcessCheckpoint: the driver cannot save" in done.stderr
    assert f"process {one.tenant}" in done.stderr and "managed memory" in done.stderr
    assert "it is not suspended" in done.stderr and state(place, launcher, one) == "running"
    assert 'nvc_slice_suspend_failures_total{' in get(place, "/metrics")
    assert one.tells()


def test_one_that_its_engine_checkpoints(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """It stays locked until the engine has done."""
    one, library = holder(100), f"{driver}{LIBS}/libcuda.so.1"
    assert calls(library, one.tenant, "Lock") == [0]
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert "another program has it" in done.stderr and "it is not suspended" in done.stderr, done.stderr
    assert calls(library, one.tenant, "Checkpoint", "Restore", "Unlock") == [0, 0, 0] and one.tells()
    cli(place, launcher, "suspend", str(one.tenant))
    cli(place, launcher, "resume", str(one.tenant))
    assert one.tells()


@pytest.mark.driver(gpus=1, cuda_version="12.4")
def test_an_old_driver(place: Place, launcher: str, holder: Start) -> None:
    one = holder()
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert done.returncode == 1 and "driver 570 (CUDA 12.8) or newer" in done.stderr
    assert one.tells()


def test_what_is_refused_at_once(place: Place, launcher: str, holder: Start) -> None:
    one = holder()
    cli(place, launcher, "pause", str(one.tenant))
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert done.returncode == 1 and "the slice is paused" in done.stderr and "resume" in done.stderr
    cli(place, launcher, "resume", str(one.tenant))
    one.signal(signal.SIGSTOP)
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    one.signal(signal.SIGCONT)
    assert done.returncode == 1 and f"/proc/{one.tenant}: the process is stopped" in done.stderr
    cli(place, launcher, "suspend", str(one.tenant))
    done = cli(place, launcher, "pause", str(one.tenant), check=False)
    assert done.returncode == 1 and "it is suspended" in done.stderr
    cli(place, launcher, "resume", str(one.tenant))
    assert one.tells()
