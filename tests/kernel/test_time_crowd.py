"""Tenants fill the tracer's table with objects: one of their processes ends, and nobody else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support import until
from support.nvcd import Place, ask, eventually
from support.simrm import Served
from support.tracing import Caller, build_calls
from support.vgpucap import Worker

pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=1)]
MANY = 4094  # with a client and a device as many as the tracer takes of a process
CROWD = 16  # of these fill the table but for what the worker beside them has


@pytest.fixture
def crowd(served: Served, place: Place, driver: str, launcher: str) -> Iterator[Callable[[str], Caller]]:
    """Factory: a program of a slice of that name that can call the driver."""
    with ExitStack() as stack:

        def start(name: str) -> Caller:
            words = place.sliced(launcher, driver, "--device=0", "--memory=64m", f"--name={name}")
            return stack.enter_context(Caller(build_calls("64"), served.path, words))

        yield start


def test_a_process_of_those_who_fill_the_table_ends_and_nobody_else_does(
    served: Served, place: Place, driver: str, crowd: Callable[[str], Caller], busy: Callable[..., Worker]
) -> None:
    place.start(f"--root={driver}")
    before = busy("--policy=weight", seconds=600).started()
    callers = [crowd(f"crowd-{number}") for number in range(CROWD)]
    for caller in callers:
        client = int(caller.ask("alloc plain 0 0 0 65 0")[2])
        device = int(caller.ask(f"alloc plain {client} {client} 0 128 0")[2])
        assert caller.ask(f"many {client} {device} {MANY}") == ["many", str(MANY)]
    after = busy("--policy=weight", seconds=600).started()
    until(lambda: any(caller.process.poll() is not None for caller in callers), lambda: place_said(place))
    said = place_said(place)
    assert "has channels that nvcd does not see: the tracer's table is full" in said
    assert "the tracer's table is full, and 4096 objects of it are this process's" in said
    state = eventually(place, lambda s: len(s["devices"][0]["had"]) >= 2)
    had = max(one["hadNs"] for one in state["devices"][0]["had"])
    eventually(place, lambda s: max(one["hadNs"] for one in s["devices"][0]["had"]) > had + 10**9)
    assert before.process.poll() is None and after.process.poll() is None
    assert ask(place)["timekeeper"]["killed"] < CROWD


def place_said(place: Place) -> str:
    assert place.daemon is not None
    return place.daemon.said()
