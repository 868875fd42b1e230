"""Shares of a device's time in tests: processes of tests/native/vgpu_work.c in a slice with a cap."""

from __future__ import annotations

import os
import subprocess

from nvc.value import Value
from nvc.vgpu import layout
from support import REPO, run
from support.simdriver import SOURCES, WARN
from support.vgpushim import GIB, Slice

FIXED, NATIVE = 3, 5
PAUSED = 1


def compile_work(directory: str, *flags: str) -> str:
    """tests/native/vgpu_work.c as a program."""
    program = os.path.join(directory, "vgpu_work")
    include = f"-I{os.path.join(REPO, 'native/vgpu')}"
    source = os.path.join(SOURCES, "vgpu_work.c")
    run("gcc", *WARN, *flags, include, "-o", program, source, "-ldl", "-lpthread", timeout=300)
    return program


class Result(Value):
    """What a worker did after it was warm."""

    kernels: int
    seconds: float
    longest: float  # milliseconds that one launch took
    rate: float  # kernels a second
    rounds: int  # of a kernel's loop, on a real device


class Worker:
    """A process of vgpu_work."""

    def __init__(self, slice_: Slice, **arguments: object) -> None:
        words = [f"{name}={value}" for name, value in arguments.items()]
        self.process = subprocess.Popen(
            [slice_.tool, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=slice_.environment(), text=True,
        )  # fmt: skip

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words, f"the worker ended with {self.process.wait()}"
        return words

    def started(self) -> Worker:
        """It is warm."""
        self.rounds = int(self.line()[1])
        return self

    def progress(self) -> tuple[float, int]:
        """The next line of a trace: milliseconds of CLOCK_MONOTONIC, kernels launched."""
        at, kernels = self.line()
        return float(at), int(kernels)

    def result(self) -> Result:
        words = self.line()
        while len(words) != 4:
            words = self.line()
        self.end()
        return Result(int(words[0]), float(words[1]), float(words[2]), float(words[3]), self.rounds)

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
        assert self.process.wait(timeout=60) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Capped(Slice):
    """A slice whose processes are vgpu_work's."""

    workers: list[Worker]

    def cap(self, cores: int, policy: int = FIXED, flags: int = 0) -> None:
        self.limit(*[8 * GIB] * len(self.uuids), cores=cores, policy=policy, flags=flags)

    def worker(self, **arguments: object) -> Worker:
        self.workers.append(Worker(self, **arguments))
        return self.workers[-1]

    def work(self, **arguments: object) -> Result:
        return self.worker(**arguments).started().result()

    def budget(self, device: int = 0) -> tuple[int, ...]:
        """Fields of struct vgpu_budget."""
        with open(self.path("nvc/ledger/ledger"), "rb") as ledger:
            ledger.seek(layout.BUDGETS_OFFSET + device * layout.BUDGET.size)
            return layout.BUDGET.unpack(ledger.read(layout.BUDGET.size))

    def charged(self) -> float:
        """Seconds of GPU time that were charged, in all."""
        return self.budget()[3] / 1e9
