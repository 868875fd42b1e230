"""Processes that use a simulated driver, and the builds of it that tests run them on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from nvc.testing.sim import SimSpec, create
from nvc.testing.sim.layout import host_arch
from support import CLEAN_ENV, REPO, run
from support.builds import make
from support.dialog import Dialog
from support.realtime import REAL, Time

from . import MIB

if TYPE_CHECKING:
    from typing_extensions import Self

SOURCES = os.path.join(REPO, "tests/native")
WARN = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-Werror")
#: Where programs find `abi/cuda.h`.
ABI = f"-I{os.path.join(REPO, 'native')}"
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def build(out: str, *settings: str) -> str:
    """The simulated driver, built in `out`; `settings` are make's."""
    make(*settings, folder="native/simdriver", out=out)
    return out


def compile_program(directory: str, driver: str, sources: list[str], *flags: str) -> str:
    """A program of tests/native linked with the libcuda of the build `driver`."""
    program = os.path.join(directory, os.path.basename(sources[0]).removesuffix(".c"))
    files = [os.path.join(SOURCES, name) for name in sources]
    library = os.path.join(driver, "libcuda.so")
    run("gcc", *WARN, ABI, *flags, "-o", program, *files, library, "-ldl", "-lpthread", timeout=300)
    return program


def library_directory(root: str) -> str:
    """Where a simulated root has its libraries by default."""
    return os.path.join(root, "usr/lib", f"{host_arch()}-linux-gnu")


def environment(root: str, **more: str) -> dict[str, str]:
    """What a program needs to find the libraries of `root`."""
    return {**CLEAN_ENV, "LD_LIBRARY_PATH": library_directory(root), **more}


class Program(Dialog):
    """A process of tests/native/vgpu_tool.c."""

    def code(self, command: str) -> int:
        """The driver's result."""
        self.send(command)
        return int(self.receive()[0])

    def ask(self, command: str) -> list[str]:
        """What the driver says, where it must succeed."""
        self.send(command)
        code, *rest = self.receive()
        assert code == "0", f"{command}: {code}"
        return rest

    def do(self, *commands: str) -> Self:
        for command in commands:
            self.ask(command)
        return self

    def start(self, device: int = 0) -> Self:
        return self.do("init", f"primary {device}")

    def info(self) -> tuple[int, int]:
        """Free and total bytes of the current device."""
        free, total = self.ask("info")
        return int(free), int(total)

    def used(self) -> int:
        """MiB of the current device in use."""
        free, total = self.info()
        return (total - free) // MIB


@pytest.fixture(scope="session")
def simdriver(stage: str) -> str:
    """The build of the simulated driver that the stage uses."""
    return os.path.join(stage, "lib/nvc/simdriver")


@pytest.fixture(scope="session")
def simdriver_sanitized() -> str:
    """A build that stops at a bad access or undefined behaviour."""
    return build(os.path.join(REPO, "build/simdriver-sanitized"), "SANITIZE=address,undefined")


@pytest.fixture
def sim_root(scratch: str, simdriver: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Factory: `sim_root(**fields of SimSpec)` returns a fresh simulated root, of two GPUs unless it says else."""
    monkeypatch.setenv("NVC_SIMDRIVER", simdriver)
    count = 0

    def make(**fields: object) -> str:
        nonlocal count
        count += 1
        root = os.path.join(scratch, f"sim{count}")
        create(root, SimSpec(**{"gpus": 2, **fields}))  # type: ignore[arg-type]
        return root

    return make


@pytest.fixture
def client(tool: str) -> Iterator[Callable[..., Program]]:
    """Factory: `client(root, **environment)` starts a program without a slice; all are ended after the test."""
    started: list[Program] = []

    def make(root: str, time: Time = REAL, **variables: str) -> Program:
        started.append(Program([tool], environment(root, **variables), time=time))
        return started[-1]

    yield make
    for one in started:
        if one.process.poll() is None:
            one.kill()
