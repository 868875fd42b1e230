"""Programs that mean no harm under nvcd: the harness of tests/gpu/test_no_false_alarm.py, on two simulated GPUs.

In virtual time: where the host lets no program run, slices are late, and nvcd says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV
from support.honest import Honest, options, side_by_side
from support.nvcd import Place
from support.rootfs import LIBS
from support.vgpu import ensure_shim
from support.virtual import World


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
