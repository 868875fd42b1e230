"""A program in a slice beside another tenant, on a simulated GPU in virtual time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nvc.base.value import Value

from . import CLEAN_ENV
from .nvcd import Place
from .rootfs import LIBS
from .vgpu import ensure_shim
from .vgpucap import Worker
from .virtual import World, device_time

SWITCH_NS = 150_000  # as on an H200


class Shares(Value):
    """Parts of the device's time."""

    share: float  # of the program
    other: float  # of the tenant
    most: float  # of the tenant in any second


class Tenants:
    """Programs in slices of one simulated GPU, in virtual time."""

    def __init__(self, place: Place, driver: str, launcher: str) -> None:
        self.place, self.driver, self.launcher = place, driver, launcher
        self.world: Any = place.time
        self.card: dict[str, object] = {"NVC_SIM_SWITCH_NS": SWITCH_NS}
        self.started: list[subprocess.Popen[Any]] = []

    def words(self, cores: int, program: Sequence[object]) -> list[str]:
        run = self.place.sliced(self.launcher, self.driver, "--memory=8g", f"--cores={cores}")
        variables = {**self.world.variables(), **self.card}
        inside = (f"{name}={value}" for name, value in variables.items())
        return [*run, "env", *inside, *map(str, program)]

    @property
    def variables(self) -> dict[str, str]:
        return {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{self.driver}{LIBS}"}

    def start(self, cores: int, *program: object) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.started.append(self.world.start(self.words(cores, program), self.variables, **quiet))

    def beside(self, work: str, program: Sequence[object], cap: int, seconds: int) -> Shares:
        """What a program with a cap has, and a tenant that has all that the cap leaves and always has work."""
        words = self.words(100 - cap, [work])
        other = Worker(
            words[0], self.variables, *words[1:], time=self.world, ns=1000000, batch=0, warm=0, seconds=1e6
        )
        other.started()
        pid = self.world.pid(other.process)
        self.start(cap, *program)
        self.world.run(2)
        before = last = device_time(self.driver)
        most = 0.0
        for _ in range(seconds):
            self.world.run(1)
            after = device_time(self.driver)
            most = max(most, after.of(pid) - last.of(pid))
            last = after
        had = (after.of(pid) - before.of(pid)) / seconds
        share = (after.total - before.total) / seconds - had
        other.kill()
        return Shares(share, had, most)

    def end(self) -> None:
        for process in self.started:
            self.world.kill(process)


@pytest.fixture
def driver(sim_root: Callable[..., str], scratch: str) -> str:
    """The root of a simulated driver with one GPU."""
    return sim_root(gpus=1, seed=scratch)


@pytest.fixture
def tenants(stage: str, scratch: str, world: World, driver: str, launcher: str) -> Iterator[Tenants]:
    """Slices of that GPU beside nvcd, in virtual time."""
    ensure_shim(stage, scratch)
    place = Place(stage, scratch, world)
    place.start(f"--root={driver}")
    made = Tenants(place, driver, launcher)
    yield made
    made.end()
    place.end()
