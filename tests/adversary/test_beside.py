"""Programs that try to have more of a GPU's time than their cap, with nvcd beside another tenant, in virtual time.

The other tenant has all that the cap leaves, and always has work. tests/gpu/test_adversary_time.py does the same.
As on a GPU, a change from one process's work to another's takes time, and waits and events of a process are
reached while the device is its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from support import CLEAN_ENV
from support.adversary_time import WAYS, Way
from support.nvcd import Place
from support.rootfs import LIBS
from support.vgpu import ensure_shim
from support.vgpucap import Worker
from support.virtual import World, device_time

SECONDS = 10
SHORT = 4  # in `make test`
SWITCH_NS = 100_000
POINTS = 0.01
BESIDE = 0.02  # that the other tenant may lack, or have too much
#: In `make test`: one that waits, one that does not, one that alternates, two that the host holds back, processes,
#: what leaves work behind, and what is late so often that the other one has to save time.
ALWAYS = (
    "honest",
    "queue",
    "alternate",
    "held-back",
    "processes",
    "queues-of-processes",
    "leaving",
    "new-modules",
    "held-one-by-one",
    "held-events",
    "held-gone",
)
CASES = [
    pytest.param(way, cap, SECONDS, id=f"{way.name}-{cap}", marks=pytest.mark.nightly)
    for cap in (10, 50)
    for way in WAYS
    if not way.copies
]
CASES += [pytest.param(way, 50, SHORT, id=f"{way.name}-short") for way in WAYS if way.name in ALWAYS]


class Tenants:
    """Programs in slices of one simulated GPU, in virtual time."""

    def __init__(self, place: Place, driver: str, launcher: str) -> None:
        self.place, self.driver, self.launcher = place, driver, launcher
        self.world: Any = place.time
        self.started: list[subprocess.Popen[Any]] = []

    def words(self, cores: int, program: Sequence[object]) -> list[str]:
        run = self.place.sliced(self.launcher, self.driver, "--memory=8g", f"--cores={cores}")
        variables = {**self.world.variables(), "NVC_SIM_SWITCH_NS": SWITCH_NS}
        inside = (f"{name}={value}" for name, value in variables.items())
        return [*run, "env", *inside, *map(str, program)]

    @property
    def variables(self) -> dict[str, str]:
        return {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{self.driver}{LIBS}"}

    def start(self, cores: int, *program: object) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.started.append(self.world.start(self.words(cores, program), self.variables, **quiet))

    def end(self) -> None:
        for process in self.started:
            self.world.kill(process)


@pytest.fixture
def driver(sim_root: Callable[..., str], scratch: str) -> str:
    return sim_root(gpus=1, seed=scratch)


@pytest.fixture
def tenants(stage: str, scratch: str, world: World, driver: str, launcher: str) -> Iterator[Tenants]:
    ensure_shim(stage, scratch)
    place = Place(stage, scratch, world)
    place.start(f"--root={driver}")
    made = Tenants(place, driver, launcher)
    yield made
    made.end()
    place.end()


@pytest.mark.parametrize("way, cap, seconds", CASES)
def test_the_other_has_its_share(
    tenants: Tenants, take_time: str, work: str, world: World, way: Way, cap: int, seconds: int
) -> None:
    words = tenants.words(100 - cap, [work])
    other = Worker(
        words[0], tenants.variables, *words[1:], time=world, ns=1000000, batch=0, warm=0, seconds=1e6
    )
    other.started()
    pid = world.pid(other.process)
    tenants.start(cap, take_time, way.name, 1000, 1000)
    world.run(2)
    before = last = device_time(tenants.driver)
    most = 0.0
    for _ in range(seconds):
        world.run(1)
        after = device_time(tenants.driver)
        most = max(most, after.of(pid) - last.of(pid))
        last = after
    had = (after.of(pid) - before.of(pid)) / seconds
    share = (after.total - before.total) / seconds - had
    other.kill()

    assert share <= cap / 100 + POINTS + way.burst / seconds
    assert 1 - cap / 100 - BESIDE - way.lacks <= had <= 1 - cap / 100 + BESIDE + way.lends
    assert most <= 1 - cap / 100 + BESIDE + way.lends + way.swings
    if cap == 50:
        assert share >= way.least * cap / 500  # it goes on
