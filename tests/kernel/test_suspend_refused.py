"""What `vgpu suspend` refuses, on a simulated GPU: the slice runs on as before."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from support.checkpoint import calls
from support.nvcd import Place
from support.nvcd_programs import Program, get, started
from support.rootfs import LIBS
from support.suspended import Start, cli, shown, state

pytestmark = pytest.mark.driver(gpus=1)


def test_what_the_driver_refuses(place: Place, launcher: str, holder: Start) -> None:
    one = holder(100, "managed")
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert done.returncode == 1 and "cuCheckpointProcessCheckpoint: the driver cannot save" in done.stderr
    assert f"process {one.tenant}" in done.stderr and "managed memory" in done.stderr
    assert "it is not suspended" in done.stderr and state(place, launcher, one) == "running"
    assert 'nvc_slice_suspend_failures_total{' in get(place, "/metrics")
    assert one.tells()


@pytest.mark.parametrize("kind", ["handle", "descriptor"])
def test_memory_that_another_process_has(
    place: Place, driver: str, launcher: str, sliced: Callable[..., Program], scratch: str, kind: str
) -> None:
    """By a handle of cuIpc*, or a descriptor; once the other one has given it up, it is as any memory."""
    started(place, driver)
    one, other = sliced("1GiB", "--name=one"), sliced("1GiB")
    if kind == "handle":
        file = f"{scratch}/handle"
        made, taken, end = ("alloc a 64m", f"ipcget a {file}"), f"ipcopen b {file}", "ipcclose b"
    else:
        made, taken, end = ("create a 64m 0 1 1", "export a f"), "importfrom b {} {}", "release b"
    assert [one.code(command)[0] for command in made] == [0, 0]
    (process,) = shown(place, launcher, "one")["processes"]
    taken = taken.format(process["pid"], one.code("show f")[1])
    assert other.code(taken)[0] == 0
    done = cli(place, launcher, "suspend", "one", check=False)
    assert "memory of several processes" in done.stderr and "it is not suspended" in done.stderr, done.stderr
    assert other.code(end)[0] == 0
    cli(place, launcher, "suspend", "one")
    cli(place, launcher, "resume", "one")
    assert one.code("alloc z 64m")[0] == 0


def test_work_that_does_not_end(place: Place, launcher: str, holder: Start) -> None:
    """It is waited for until the lock times out."""
    place.constants["nvc.daemon.suspend.calls.LOCK_MS"] = 200
    one = holder(100)
    one.spin(3000)
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert "work in flight did not end in time; it is not suspended" in done.stderr, done.stderr
    assert one.tells() and state(place, launcher, one) == "running"


def test_one_that_its_engine_checkpoints(place: Place, driver: str, launcher: str, holder: Start) -> None:
    """It stays locked until the engine has done, and comes back if the engine restores it."""
    one, library = holder(100), f"{driver}{LIBS}/libcuda.so.1"
    assert calls(library, one.tenant, "Lock") == [0]
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert "another program has it" in done.stderr and "it is not suspended" in done.stderr, done.stderr
    assert calls(library, one.tenant, "Checkpoint", "Restore", "Unlock") == [0, 0, 0] and one.tells()
    cli(place, launcher, "suspend", str(one.tenant))
    assert calls(library, one.tenant, "Restore", "Unlock") == [0, 0] and one.tells()
    cli(place, launcher, "resume", str(one.tenant))
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
    one.signal(signal.SIGSTOP)
    done = cli(place, launcher, "resume", str(one.tenant), check=False)
    one.signal(signal.SIGCONT)
    assert "the process is stopped" in done.stderr and "it is suspended" in done.stderr, done.stderr
    cli(place, launcher, "resume", str(one.tenant))
    assert one.tells()
