"""Programs that mean no harm under nvcd: the harness of tests/gpu/test_no_false_alarm.py, on two simulated GPUs.

In virtual time: where the host lets no program run, slices are late, and nvcd says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV
from support.honest import Honest, options, side_by_side, unverified, wrong
from support.nvcd import Place
from support.rootfs import LIBS
from support.vgpu import ensure_shim
from support.virtual import World

FINE = {"found": {"bypass": 0, "stranger": 3}, "denied": [], "broken": []}


@pytest.fixture
def tenants(
    stage: str, scratch: str, launcher: str, work: str, sim_root: Callable[..., str], world: World
) -> Iterator[tuple[Place, list[Honest]]]:
    """One on the first GPU, one on the second, and one on both, each with kernels of 1 ms that it waits for."""
    ensure_shim(stage, scratch)
    root = sim_root(gpus=2, seed=scratch)
    place, running = Place(stage, scratch, world), []
    place.start(f"--root={root}")
    for name, devices in (("first", ["0"]), ("second", ["1"]), ("both", ["0", "1"])):
        inside = (f"{key}={value}" for key, value in world.variables().items())
        words = [*options(place, launcher, root, name, devices, "1GiB"), "env", *inside, work]
        words += ["ns=1000000", "batch=1", "seconds=600", "warm=0"]
        running.append(Honest(name, words, {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{root}{LIBS}"}, world))
    yield place, running
    for one in running:
        one.kill()
    place.end()


def test_nothing_is_found_of_them(tenants: tuple[Place, list[Honest]]) -> None:
    place, running = tenants
    said = side_by_side(place, running, 3)
    assert [name for name, words in said.items() if int(words.split()[0]) > 0] == ["first", "second", "both"]


@pytest.mark.nightly  # of a harness, which a run on a real GPU needs
def test_one_that_ends_is_named(tenants: tuple[Place, list[Honest]]) -> None:
    place, running = tenants
    place.time.kill(running[1].process)
    with pytest.raises(AssertionError, match="second ended"):
        side_by_side(place, running, 60)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"found": {"excess": 1, "stranger": 0}}, ["excess: 1"]),
        ({"denied": ["one"]}, ["denied: one"]),
        ({"broken": ["a quota"]}, ["a quota"]),
    ],
)
def test_what_is_found_is_said(change: dict[str, object], said: list[str]) -> None:
    assert wrong({**FINE, **change}) == said


@pytest.mark.parametrize(
    ("truth", "slices", "said"),
    [(5, ["a"], []), (None, ["a"], ["a"]), (5, ["a", "b"], ["b"]), (5, [], ["0 slices of 1"])],
)
def test_slices_that_nothing_could_be_found_of(
    truth: int | None, slices: list[str], said: list[str]
) -> None:
    state = {"memory": [{"key": "a", "truth": truth}], "slices": [{"key": key} for key in slices]}
    assert unverified(json.loads(json.dumps(state)), ["one"]) == said
