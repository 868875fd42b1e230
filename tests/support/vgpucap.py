"""Shares of a device's time in tests: processes of tests/native/vgpu_work.c in a slice with a cap."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from nvc.base.value import Value
from nvc.model.slices import layout
from support import GIB, run
from support.builds import kept
from support.realtime import REAL, Lines, Time
from support.simdriver import SOURCES, WARN
from support.vgpushim import INCLUDES, Slice, end_all
from support.virtual import World, device_time

FIXED, NATIVE = 3, 5
PERIOD = 0.1  # of which credit can be saved up; see budget.h


def compile_work(directory: str, *flags: str) -> str:
    """tests/native/vgpu_work.c as a program."""
    program = os.path.join(directory, "vgpu_work")
    source = os.path.join(SOURCES, "vgpu_work.c")
    run("gcc", *WARN, *flags, *INCLUDES, "-o", program, source, "-ldl", "-lpthread", timeout=300)
    return program


class Result(Value):
    """What a worker did after it was warm."""

    kernels: int
    seconds: float
    longest: float  # milliseconds that one launch took
    rate: float  # kernels a second
    kernels_in_all: int  # from the beginning
    seconds_in_all: float
    rounds: int  # of a kernel's loop, on a real device


class Worker:
    """A process of vgpu_work."""

    def __init__(
        self,
        program: str,
        variables: dict[str, str],
        *before: str,
        time: Time = REAL,
        **arguments: object,
    ) -> None:
        words = [*before, *(f"{name}={value}" for name, value in arguments.items())]
        pipe = subprocess.PIPE
        self.time = time
        self.process = time.start([program, *words], variables, stdin=pipe, stdout=pipe, text=True)
        self._lines = Lines(time, self.process.stdout)

    def line(self, seconds: float = 600) -> list[str]:
        words = (self._lines.next(seconds) or "").split()
        assert words, f"the worker ended with {self.time.finish(self.process)}"
        return words

    def started(self) -> Worker:
        """It is warm."""
        self.rounds = int(self.line()[1])
        return self

    def progress(self, seconds: float = 600) -> tuple[float, int]:
        """The next line of a trace: milliseconds of CLOCK_MONOTONIC, kernels launched."""
        at, kernels = self.line(seconds)
        return float(at), int(kernels)

    def result(self) -> Result:
        words = self.line()
        while len(words) != 6:
            words = self.line()
        self.end()
        numbers = [float(word) for word in words]
        return Result(
            int(numbers[0]), numbers[1], numbers[2], numbers[3], int(numbers[4]), numbers[5], self.rounds
        )

    def stop(self) -> Result:
        """End it early."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.result()

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.time.finish(self.process) == 0

    def kill(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.time.kill(self.process)
        self.process.stdin.close()
        self.process.stdout.close()


class Capped(Slice):
    """A slice whose processes are vgpu_work's. In tests of the simulated driver they are in virtual time."""

    workers: list[Worker]

    def cap(self, cores: int, policy: int = FIXED, flags: int = 0, kept_until: int = 0) -> None:
        limits = [8 * GIB] * len(self.uuids)
        self.limit(*limits, cores=cores, policy=policy, flags=flags, kept_until=kept_until)

    def worker(self, **arguments: object) -> Worker:
        self.workers.append(Worker(self.tool, self.environment(), time=self.time, **arguments))
        return self.workers[-1]

    def work(self, **arguments: object) -> Result:
        return self.worker(**arguments).started().result()

    def native(self, **arguments: object) -> Worker:
        """A worker without the shim."""
        variables = {**self.environment(), "LD_LIBRARY_PATH": self.real_directory()}
        self.workers.append(Worker(self.tool, variables, time=self.time, **arguments))
        return self.workers[-1]

    def real_directory(self) -> str:
        """The real library by its own name, so that a process can go without the shim."""
        directory = self.path("native")
        if not os.path.exists(directory):
            os.mkdir(directory)
            shutil.copy(self.path("nvc/real-libcuda.so.1"), os.path.join(directory, "libcuda.so.1"))
        return directory

    def budget(self) -> tuple[int, ...]:
        """Fields of struct vgpu_budget."""
        with open(self.path("nvc/ledger/ledger"), "rb") as ledger:
            ledger.seek(layout.BUDGETS_OFFSET)
            return layout.BUDGET.unpack(ledger.read(layout.BUDGET.size))

    def charged(self) -> float:
        """Seconds of GPU time that were charged, in all."""
        return self.budget()[2] / 1e9


@pytest.fixture(scope="session")
def work() -> str:
    return kept("vgpu_work", lambda directory: compile_work(directory, "-O2"))


def end_workers(slices: list[Capped]) -> None:
    """No worker outlives its test."""
    for made in slices:
        for worker in made.workers:
            worker.kill()
    end_all(list(slices))


@pytest.fixture
def capped(
    sim_root: Callable[..., str], shims: str, work: str, world: World
) -> Iterator[Callable[..., Capped]]:
    """Factory: a slice of simulated devices for workers in virtual time, with these shims or another build."""
    made: list[Capped] = []

    def make(build: str = shims, program: str = work, **wanted: object) -> Capped:
        made.append(Capped(sim_root(**wanted), build, program))
        made[-1].workers, made[-1].time = [], world
        return made[-1]

    yield make
    end_workers(made)


@pytest.fixture
def beside(capped: Callable[..., Capped], shims: str, work: str, world: World) -> Iterator[Callable[..., Capped]]:
    """Factory: slices of one simulated GPU for workers in virtual time, one after the other."""
    made: list[Capped] = []

    def make() -> Capped:
        if not made:
            made.append(capped())
            return made[0]
        first, one = made[0], Capped.__new__(Capped)
        real = first.path("nvc/real")
        os.makedirs(real, exist_ok=True)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(first.path(f"nvc/real-{name}"), os.path.join(real, name))
        one.make(first.root, shims, work, real, first.uuids, f"slice{len(made)}")
        one.workers, one.time = [], world
        made.append(one)
        return one

    yield make
    end_workers(made[1:])


class Shares:
    """What processes of a slice have of a GPU from now on."""

    def __init__(self, world: World, slice_: Capped, seconds: float = 5, settle: float = 1) -> None:
        world.run(settle)
        before, charged = device_time(slice_.root), slice_.charged()
        world.run(seconds)
        after = device_time(slice_.root)
        self.total = (after.total - before.total) / seconds
        self.each = [
            (after.of(one.process.pid) - before.of(one.process.pid)) / seconds for one in slice_.workers
        ]
        self.charged = (slice_.charged() - charged) / seconds
