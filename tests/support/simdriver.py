"""Processes that use a simulated driver, and the builds of it that tests run them on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from nvc.testing.sim import SimSpec, create
from nvc.testing.sim.layout import host_arch
from support import CLEAN_ENV, REPO, run
from support.builds import kept, make
from support.dialog import Dialog
from support.realtime import REAL, Time

from . import MIB

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


class Failed(Exception):
    """A call of the driver returned something else than 0."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code}")
        self.code = code


class Client(Dialog):
    """A process of tests/native/simdriver_client.c."""

    def __init__(
        self, program: str, root: str, *, pass_fds: tuple[int, ...] = (), time: Time = REAL, **variables: str
    ) -> None:
        super().__init__([program], environment(root, **variables), pass_fds, time)

    def receive(self) -> list[str]:
        """The answer to the oldest command. Raises Failed."""
        words = super().receive()
        if words[0] != "0":
            raise Failed(int(words[0]))
        return words[1:]

    def call(self, *words: object) -> list[str]:
        self.send(*words)
        return self.receive()

    def number(self, *words: object) -> int:
        return int(self.call(*words)[0])

    def code(self, *words: object) -> int:
        """The result of a call, whatever it is."""
        try:
            self.call(*words)
        except Failed as failure:
            return failure.code
        return 0

    def start(self, device: int = 0) -> Client:
        self.call("init")
        self.call("context", device)
        return self

    def used(self) -> int:
        """MiB of the current device in use."""
        free, total = self.call("info")
        return (int(total) - int(free)) // MIB


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


@pytest.fixture(scope="session")
def client_program(simdriver: str) -> str:
    return kept("client", lambda path: compile_program(path, simdriver, ["simdriver_client.c"], "-O1"))


@pytest.fixture
def client(client_program: str) -> Iterator[Callable[..., Client]]:
    """Factory: `client(root, **environment)` starts a client; all are ended after the test."""
    started: list[Client] = []

    def make(root: str, **options: object) -> Client:
        started.append(Client(client_program, root, **options))  # type: ignore[arg-type]
        return started[-1]

    yield make
    for one in started:
        if one.process.poll() is None:
            one.kill()
