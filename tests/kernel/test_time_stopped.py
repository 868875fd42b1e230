"""Who is stopped stays so while nvcd lives, and goes on once it has ended, on a simulated resource manager.

Of who runs all the same, the driver's log tells what the tracer was kept from seeing.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support import CLEAN_ENV, REPO, until
from support.nvcd import Place, ask, eventually
from support.simrm import Served, groups
from support.vgpucap import Worker

from nvc.daemon.keeper.process import RIGHTS
from nvc.daemon.time.meddling import BREAKS
from nvc.kernel import LinuxKernel
from nvc.testing.sim.layout import STATE

pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=1)]

#: Starts all channels of one process, again and again. The tracer tells of that, or it does not: as of a tenant who
#: changes the call while it is read.
START = """
import os, sys
sys.path.insert(0, sys.argv[1])
from nvc.daemon.keeper.table import Table
from nvc.kernel import rm
from nvc.kernel.tracer import Tracer

tracer, table, client = Tracer.open("/run/nvc/bpf"), Table(), rm.Rm.open(sys.argv[2])
if sys.argv[4] == "hidden":
    tracer.exempt(os.getpid())
table.load(tracer.objects())
mine = [one for groups in table.groups().values() for one in groups if one.pid == int(sys.argv[3])]
channels = [(group.client, channel) for group in mine for channel in group.channels]
gpu = client.subdevice(0)
assert channels
for _ in range(int(sys.argv[5])):
    if gpu.start(channels):
        break  # it was killed
"""


@pytest.fixture
def stopped(
    served: Served, place: Place, driver: str, launcher: str, busy: Callable[..., Worker]
) -> Callable[[], tuple[Worker, int]]:
    """Factory: a program that works in a slice which is paused, and its number."""

    def start() -> tuple[Worker, int]:
        place.start(f"--root={driver}")
        worker, _ = (busy("--policy=weight", f"--name={name}", seconds=600) for name in ("one", "two"))
        worker.started()
        eventually(place, lambda s: bool(s["devices"]) and len(had_by(s)) == 2 and min(had_by(s).values()) > 10**8)
        words = place.enter(launcher, f"--root={driver}", "vgpu", "pause", "one")
        subprocess.run(words, env=CLEAN_ENV, check=True)
        state = eventually(place, lambda s: max(one["stoppedNs"] for one in s["devices"][0]["had"]) > 3 * 10**8)
        key = next(one["key"] for one in state["slices"] if one["program"] == "one")
        (pid,) = next(one["pids"] for one in state["memory"] if one["key"] == key)
        return worker, pid

    return start


def had_by(state: Any) -> dict[int, int]:
    """What each process had; not those that had nothing, of which nvcd knows for a minute after their end."""
    return {one["pid"]: one["hadNs"] for one in state["devices"][0]["processes"] if one["hadNs"]}


def off(served: Served) -> int:
    """How many channels are stopped."""
    return sum(one.stopped for one in groups(os.path.join(served.root, STATE)))


def meddling(place: Place, served: Served, pid: int, how: str, times: int) -> tuple[str, ...]:
    return place.enter(sys.executable, "-c", START, REPO, served.path, str(pid), how, str(times))


def meddle(place: Place, served: Served, pid: int, how: str, times: int) -> None:
    subprocess.run(meddling(place, served, pid, how, times), env=CLEAN_ENV, check=True)


def test_a_process_that_runs_while_it_is_stopped_is_killed(
    stopped: Callable[[], tuple[Worker, int]], place: Place, served: Served
) -> None:
    worker, pid = stopped()
    assert ask(place)["timekeeper"]["broke"] == 0
    meddle(place, served, pid, "hidden", 10**9)
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    worker.kill()
    state = ask(place)
    assert (state["timekeeper"]["broke"], state["timekeeper"]["killed"]) == (BREAKS, 1)
    assert place.daemon is not None
    *again, last = [line for line in place.daemon.said().splitlines() if "while it was stopped" in line]
    told = re.compile(rf"process {pid} of slice \S+ \(.+\) is stopped again")
    assert len(again) == BREAKS - 1 and all(map(told.search, again))
    assert f"killed process {pid} of slice" in last and "so its channels were started" in last


def test_a_stranger_who_is_seen_to_start_others_covers_nobody_else(
    stopped: Callable[[], tuple[Worker, int]], place: Place, served: Served
) -> None:
    worker, pid = stopped()
    (other,) = (had for had in had_by(ask(place)) if had != pid)
    stranger = subprocess.Popen(meddling(place, served, other, "seen", 10**9), env=CLEAN_ENV)
    try:
        eventually(place, lambda s: s["timekeeper"]["meddled"] > 100)
        meddle(place, served, pid, "hidden", 10**9)
        until(lambda: not os.path.exists(f"/proc/{pid}"))
    finally:
        stranger.kill()
        stranger.wait()
    worker.kill()
    assert ask(place)["timekeeper"]["killed"] == 1
    assert place.daemon is not None
    assert place.daemon.said().count(f"process {stranger.pid}, which is in no slice") == 1, "one in a minute"


def test_whom_somebody_else_was_seen_to_start_is_only_stopped_again(
    stopped: Callable[[], tuple[Worker, int]], place: Place, served: Served
) -> None:
    worker, pid = stopped()
    meddle(place, served, pid, "seen", 300)
    state = ask(place)
    assert state["timekeeper"]["meddled"] > 0 and state["timekeeper"]["broke"] == 0
    last = [0, 0]  # what it had, and since when

    def rests(seen: Any) -> bool:
        if had_by(seen)[pid] != last[0]:
            last[:] = had_by(seen)[pid], seen["now"]
        return bool(seen["now"] > last[1] + 3 * 10**8)

    eventually(place, rests)
    assert worker.process.poll() is None and ask(place)["timekeeper"]["broke"] == 0


@pytest.mark.parametrize("too", [False, True], ids=["nvcd", "and its timekeeper"])
def test_nobody_stays_stopped_once_nvcd_is_killed(
    stopped: Callable[[], tuple[Worker, int]], place: Place, served: Served, too: bool
) -> None:
    """By the one that is left of its processes, and then again by the next nvcd."""
    stopped()
    keeper = ask(place)["timekeeper"]["pid"]
    assert off(served) and place.daemon is not None
    place.daemon.kill()
    if too:
        os.kill(keeper, signal.SIGKILL)
    else:
        assert off(served), "shims do not know yet"
    until(lambda: not off(served))
    place.start(*place.words)
    until(lambda: off(served))


def test_a_timekeeper_that_ends_is_started_again(
    stopped: Callable[[], tuple[Worker, int]], place: Place, served: Served, launcher: str, driver: str
) -> None:
    """By its first process. It has only the rights that it needs."""
    stopped()
    keeper = ask(place)["timekeeper"]["pid"]
    with open(f"/proc/{keeper}/status", encoding="ascii") as file:
        status = dict(line.split(":\t", 1) for line in file)
    held = LinuxKernel().capget()[1] & RIGHTS
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == held and status["NoNewPrivs"] == "1\n"
    os.kill(keeper, signal.SIGKILL)
    eventually(place, lambda s: s["timekeeper"]["pid"] not in (None, keeper))
    assert place.daemon is not None and "time: the timekeeper was started again" in place.daemon.said()
    assert off(served)
    subprocess.run(place.enter(launcher, f"--root={driver}", "vgpu", "resume", "one"), env=CLEAN_ENV, check=True)
    until(lambda: not off(served))
