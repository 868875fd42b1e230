"""A tenant's process whose execve(2) never ends: who reads most of its /proc waits. Nobody may be held by it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from support import CLEAN_ENV, PATIENCE, REPO, run, until
from support.held import APART, Hold
from support.nvcd import ANEW, Place, ask, eventually
from support.rootfs import LIBS

from nvc.daemon.suspend import teller
from nvc.daemon.suspend.room import stopped_refusal
from nvc.kernel import processes
from nvc.kernel.processes import Looks, borrow, has_ended, open_root, start_of
from nvc.slices.store.process_info import is_ending, is_here, mount_namespace

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks waits less than a second."""
    monkeypatch.setattr(processes, "PATIENCE", 0.2)


def test_it_is_waited_for_once(scratch: str, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "looks", processes.Looks())
    one = hold(f"{scratch}/file", *APART)
    begun = time.monotonic()
    assert mount_namespace(one.pid)[1] == one.pid and not has_ended(f"/proc/{one.pid}")
    assert not is_ending(one.pid)
    assert time.monotonic() - begun < processes.PATIENCE / 2
    with pytest.raises(TimeoutError, match="execve"):
        open_root(one.pid)
    for _ in range(1000):  # it is remembered
        assert is_here(one.pid, 1)
        with pytest.raises(TimeoutError, match="execve"):
            start_of(f"/proc/{one.pid}")
    assert time.monotonic() - begun < PATIENCE


def test_who_looked_in_vain_has_no_descriptor_more(scratch: str, hold: Hold) -> None:
    """Also where it is opened, and is then not read."""
    one = hold(f"{scratch}/file", *APART)
    before = os.listdir("/proc/self/fd")
    for name in ("stat", "environ"):
        with pytest.raises(TimeoutError):
            Looks().read(f"/proc/{one.pid}/{name}", 100)
    with pytest.raises(TimeoutError):
        Looks().all([f"/proc/{os.getpid()}/root", f"/proc/{one.pid}/root"], os.O_PATH)
    assert os.listdir("/proc/self/fd") == before


def test_it_is_not_taken_for_stopped(scratch: str, hold: Hold) -> None:
    """By nvcd, before its slice is suspended."""
    assert stopped_refusal((hold(f"{scratch}/file", *APART).pid,)) is None


def test_who_borrows_its_descriptor_or_enters_its_network(scratch: str, hold: Hold) -> None:
    """As nvcd-time and nvcd-hook do."""
    one = hold(f"{scratch}/file", *APART)
    begun = time.monotonic()
    for look in (lambda: borrow(one.pid, 0), lambda: teller.enter(one.pid, 1)):
        with pytest.raises(TimeoutError, match="execve"):
            look()
    assert time.monotonic() - begun < PATIENCE


@pytest.mark.driver(gpus=1)
@pytest.mark.usefixtures("shim")
def test_others_are_served(place: Place, driver: str, launcher: str, scratch: str, hold: Hold) -> None:
    """By nvcd, which finds it at its start, and when it looks again; by `vgpu ls` and `vgpu run`."""
    libraries = f"{driver}{LIBS}"
    place.constants["nvc.kernel.processes.PATIENCE"] = 0.2
    one = hold(
        f"{scratch}/before", *place.sliced(launcher, driver, "--memory=64m"), LD_LIBRARY_PATH=libraries
    )
    place.start(f"--root={driver}")
    two = hold(
        f"{scratch}/after", *place.sliced(launcher, driver, "--memory=64m"), LD_LIBRARY_PATH=libraries
    )
    other = place.tenant(uuids=(ask(place)["devices"][0]["uuid"],))
    eventually(place, lambda state: other.key in [each["key"] for each in state["slices"]])
    first = ask(place)["now"]
    eventually(place, lambda state: state["now"] - first > ANEW)
    listed: Any = json.loads(
        run(*place.enter(launcher, "vgpu", "ls", "--format=json"), timeout=PATIENCE).stdout
    )
    assert len(listed["slices"]) == 3, listed
    words = place.sliced(launcher, driver, "--memory=64m")
    env = {**CLEAN_ENV, "LD_LIBRARY_PATH": libraries}
    assert run(*words, "echo", "runs", env=env, timeout=PATIENCE).stdout == "runs\n"
    assert one.process.poll() is None and two.process.poll() is None


LOOKER = """
import os
from nvc.kernel.processes import looks
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # its child runs once it waits, or has been killed
print("ready", flush=True)
while True:
    os.close(looks.open("/proc/1/root", os.O_RDONLY))
"""


def test_nobody_stays_who_looks_for_a_process_that_was_killed() -> None:
    """It may be killed before its child has said that it wants to end with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    others = children()
    try:
        for number in range(20):
            with subprocess.Popen(
                (sys.executable, "-c", LOOKER), stdout=subprocess.PIPE, cwd=REPO
            ) as looker:
                assert looker.stdout is not None and looker.stdout.readline() == b"ready\n"
                select.select([], [], [], number / 20 * 0.002)
                looker.kill()
            until(lambda: children() <= others, lambda: f"left: {children() - others}")
    finally:
        for pid in children() - others:
            os.kill(pid, signal.SIGKILL)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def children() -> set[int]:
    """Those of this process that have not ended."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/status", encoding="utf-8", errors="replace") as file:
                facts = dict(line.split(":\t", 1) for line in file if ":\t" in line)
            if facts["PPid"] == f"{os.getpid()}\n" and not facts["State"].startswith("Z"):
                found.add(int(name))
    return found
