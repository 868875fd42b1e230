"""Tenants fill the tracer's table with objects: one of their processes ends, and nobody else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import run, until
from support.nvcd import Place, ask, eventually
from support.simrm import Served
from support.tracing import Caller, build_calls, changed
from support.vgpucap import Worker

from nvc.kernel.tracer import flat_path

pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=1)]
ENTRIES = 600  # of the tracer's table here, of which others on this host have a few
MANY = 298  # objects of a program, with a client and a device: two of these leave hardly any room


@pytest.fixture
def crowd(served: Served, place: Place, driver: str, launcher: str) -> Iterator[Callable[[str], Caller]]:
    """Factory: a program of a slice of that name that can call the driver."""
    with ExitStack() as stack:

        def start(name: str) -> Caller:
            words = place.sliced(launcher, driver, "--device=0", "--memory=64m", f"--name={name}")
            return stack.enter_context(Caller(build_calls("64"), served.path, words))

        yield start


def test_a_process_of_those_who_fill_the_table_ends_and_nobody_else_does(
    served: Served, place: Place, driver: str, crowd: Callable[[str], Caller], busy: Callable[..., Worker],
    tmp_path: Path,
) -> None:  # fmt: skip
    run(*place.enter("mount", "--bind", changed(tmp_path, objects=ENTRIES), flat_path()))
    place.start(f"--root={driver}")
    before = busy("--policy=weight", seconds=600).started()
    callers = [crowd("one"), crowd("two")]
    for caller in callers:
        client = int(caller.ask("alloc plain 0 0 0 65 0")[2])
        device = int(caller.ask(f"alloc plain {client} {client} 0 128 0")[2])
        caller.ask(f"many {client} {device} {MANY}")
    after = busy("--policy=weight", seconds=600).started()
    until(lambda: any(caller.process.poll() is not None for caller in callers), lambda: place_said(place))
    said = place_said(place)
    assert "has channels that nvcd does not see: the tracer's table is full" in said
    assert "the tracer's table is full, and " in said
    state = eventually(place, lambda s: len(s["devices"][0]["had"]) >= 2)
    had = max(one["hadNs"] for one in state["devices"][0]["had"])
    eventually(place, lambda s: max(one["hadNs"] for one in s["devices"][0]["had"]) > had + 10**9)
    assert before.process.poll() is None and after.process.poll() is None
    assert ask(place)["timekeeper"]["killed"] <= len(callers)


def place_said(place: Place) -> str:
    assert place.daemon is not None
    return place.daemon.said()
