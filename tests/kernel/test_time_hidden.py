"""A process that hides its channels from the tracer is seen in the driver's log, and killed; nobody else is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import need, run, until
from support.builds import kept
from support.nvcd import Place, ask, eventually
from support.simrm import Served, groups, serve
from support.tracing import WARN
from support.vgpucap import Worker

from nvc.daemon.time.timing import BREAKS
from nvc.testing.sim.layout import STATE

pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=1)]

SOURCE = f"{os.path.dirname(os.path.abspath(__file__))}/hide_channels.c"


def build(directory: str) -> str:
    library = f"{directory}/hide_channels.so"
    run(need("gcc"), *WARN, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-lpthread")
    return library


@pytest.fixture
def other(served: Served, sim_root: Callable[..., str], simrm: str) -> Iterator[Served]:
    """A resource manager that nothing else uses."""
    with serve(sim_root(gpus=1), simrm) as made:
        yield made


def test_it_is_killed_and_its_neighbour_goes_on(
    other: Served, served: Served, place: Place, driver: str, scratch: str, busy: Callable[..., Worker]
) -> None:
    fifo = f"{scratch}/hide"
    os.mkfifo(fifo)
    place.start(f"--root={driver}")
    # The loader takes a space for the end of a path.
    library = shutil.copy(kept("hide_channels", build), scratch)
    hides = ("env", f"HIDE_CHANNELS={fifo}", f"LD_PRELOAD={library}")
    one = busy("--policy=weight", "--name=one", seconds=600, before=hides)
    two = busy("--policy=weight", "--name=two", seconds=600)
    for worker in (one, two):
        worker.started()
    state = eventually(place, lambda s: bool(s["devices"]) and len(working(s)) == 2)
    key = next(each["key"] for each in state["slices"] if each["program"] == "one")
    (pid,) = next(each["pids"] for each in state["memory"] if each["key"] == key)
    (client,) = {each.client for each in groups(os.path.join(served.root, STATE)) if each.pid == pid}
    with open(fifo, "w", encoding="ascii") as line:
        line.write(f"{client} {other.path}\n")
    until(lambda: not os.path.exists(f"/proc/{pid}"), lambda: f"{place.daemon and place.daemon.said()}")
    one.kill()
    assert place.daemon is not None
    *again, last = [each for each in place.daemon.said().splitlines() if "has hidden its channels" in each]
    whose = f"process {pid} of slice {key} (one)"
    assert len(again) == BREAKS - 1 and all(f"{whose} is looked for again" in each for each in again)
    assert f"killed {whose}: " in last
    assert ask(place)["timekeeper"]["killed"] == 1 and two.process.poll() is None


def working(state: Any) -> list[int]:
    return [each["pid"] for each in state["devices"][0]["processes"] if each["hadNs"] > 10**8]
