"""nvcd beside programs in slices, some of which go around the shim: what tests of its books and findings share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from . import CLEAN_ENV, PATIENCE, REPO, run
from .dialog import Dialog
from .nvcd import Place, eventually
from .rootfs import LIBS

METRICS = '[nvcd]\nmetrics = "unix:/run/nvc/nvcd/metrics.sock"\n'


def pid_of_slice(place: Place) -> int:
    """A process of the one slice, when nvcd knows it."""
    return int(one(eventually(place, lambda s: one(s)["pids"]))["pids"][0])


class Program(Dialog):
    """vgpu_tool in the place, by the words that start it."""

    def __init__(self, *words: str, **variables: str) -> None:
        super().__init__(words, {**CLEAN_ENV, **variables})

    def code(self, command: str) -> list[int]:
        self.send(command)
        return [int(word) for word in self.receive()]


@pytest.fixture
def sliced(place: Place, driver: str, launcher: str, tool: str) -> Iterator[Callable[..., Program]]:
    """Starts a program with a slice and a context; without a memory, one that is in no slice."""
    started = []

    def start(memory: str = "", *words: str) -> Program:
        run = (launcher, f"--root={driver}", "vgpu", "run", f"--memory={memory}", *words, "--")
        program = Program(*place.enter(*(run if memory else ()), tool), LD_LIBRARY_PATH=f"{driver}{LIBS}")
        started.append(program)
        for command in ("init", "primary 0"):
            assert program.code(command)[0] == 0
        return program

    yield start
    for program in started:
        program.end()


@pytest.fixture
def around(driver: str, tool: str, scratch: str) -> Iterator[Callable[..., Program]]:
    """Starts a program in the slice of another one that opens the driver's own libcuda."""
    started = []

    def start(pid: int) -> Program:
        private = os.path.join(scratch, "private")
        if not os.path.isdir(private):
            os.mkdir(private)
            os.symlink(f"{driver}{LIBS}/nvc/real-libcuda.so.1", f"{private}/libcuda.so.1")
        started.append(Program("nsenter", "-t", str(pid), "-m", tool, LD_LIBRARY_PATH=private))
        for command in ("init", "primary 0"):
            assert started[-1].code(command)[0] == 0
        return started[-1]

    yield start
    for program in started:
        program.end()


@pytest.fixture
def held() -> Iterator[Callable[..., None]]:
    """From now on nobody gets leave to open what a process sees at the paths; see heldfiles.py."""
    holders = []

    def hold(pid: int, kind: str, *paths: str) -> None:
        program = os.path.join(REPO, "tests/support/heldfiles.py")
        words = ["nsenter", "-t", str(pid), "-m", sys.executable, program, kind, *paths]
        holders.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=CLEAN_ENV))
        stdout = holders[-1].stdout
        assert stdout is not None and stdout.readline() == b"ready\n"

    yield hold
    for holder in holders:
        holder.communicate(timeout=PATIENCE)


def get(place: Place, path: str) -> str:
    """nvcd's answer to a scraper."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.connect(f"{place.run}/nvcd/metrics.sock")
        made.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        data = b""
        while part := made.recv(1 << 16):
            data += part
    return data.decode()


def one(found: Any) -> Any:
    """The only slice's books."""
    return found["memory"][0] if found["memory"] else {"truth": None, "model": None, "pids": []}


def started(place: Place, driver: str, settings: str = "") -> None:
    path = os.path.join(place.scratch, "config.toml")
    with open(path, "w", encoding="ascii") as out:
        out.write(settings)
    place.start(f"--root={driver}", f"--config={path}")


def told(place: Place, launcher: str, key: str, kind: str, action: str, end: str = "over") -> None:
    """What was found of a slice, and its end, are in the log and in `vgpu show`."""
    assert place.daemon is not None
    lines = [line for line in place.daemon.said().splitlines() if f"nvcd: {kind}: " in line]
    assert [line.rpartition("; ")[2].split()[0] for line in lines] == [action, end.split()[0]], lines
    shown = run(*place.enter(launcher, "vgpu", "show", key)).stdout.splitlines()
    past = [line for line in shown if f" {kind}: " in line]
    assert [line.rpartition("; ")[2].split()[0] for line in past] == [action, end.split()[0]], shown


def violation(place: Place, kind: str) -> str:
    """The line of metrics that says that something goes on; "": it does not."""
    lines = get(place, "/metrics").splitlines()
    found = [line for line in lines if line.startswith("nvc_slice_violation{") and f'kind="{kind}"' in line]
    return found[0] if found else ""
