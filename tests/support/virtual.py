"""Virtual time: programs, the shim, nvcd and the simulated driver share one clock that the test advances.

A `World` is a discrete simulation of events (tests/native/virtual/world.h) among real processes. A preloaded
library replaces their clocks, sleeps, waits and locks. One thread runs at a time, the one that is furthest
behind; what it does costs fixed amounts of virtual time; when all wait, the clock jumps. So a test takes the
same course each time, whatever else the host does, and many virtual seconds take one real second.

Time passes only in `run`, `wait`, `until`, `finish` and `output`. Between them the world stands still, and
the test may do what it likes at one moment: write files, start, signal and kill processes, use sockets.

    def test_half(world, capped):
        slice_ = capped()                                  # a slice of a simulated GPU
        slice_.cap(50)
        worker = slice_.worker(ns=1_000_000, batch=0, seconds=60, warm=0)   # tests/native/vgpu_work.c
        world.run(10)                                    # ten virtual seconds
        assert device_time(slice_.root).of(worker.process.pid) == pytest.approx(5.0, abs=0.02)

In tests/kernel, `timed.start(f"--root={driver}")` starts nvcd in this time, and `tenant("--cores=30")` a program in
a slice of `vgpu run`. What `vgpu run` made is `world.pid(worker.process)`.

Any other program: `world.start([path, *words], slice_.environment())`, and `world.kill(process)` in the end;
what takes part and still lives when the test ends is killed.

What is started by `World.start`, or with `World.variables()`, takes part if it uses dynamic libraries, and so
do its threads and what it makes by fork and exec. A program that waits in something that is not simulated stops
the world, and the test fails with `Stuck`, which says where: popen, posix_spawn and its children, barriers,
read-write locks, sigwait, message queues, timers of the kernel (timerfd, SIGALRM), programs under sanitizers,
static programs.

Times are seconds of CLOCK_MONOTONIC, which BOOTTIME and RAW equal; the wall clock is `WALL` ahead of it. A look
at a clock takes 50 ns, a call of the driver 1 us, being woken 2 us or what `wake` says. Computing takes no time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from nvc.base.files import closing
from nvc.base.value import Value
from nvc.testing.sim import state
from nvc.testing.sim.layout import STATE
from nvc.testing.sim.report import report

from . import PATIENCE, REPO, run
from .builds import kept
from .simdriver import WARN

DIRECTORY = os.path.join(REPO, "tests/native/virtual")
UPTIME = 100_000.0
WALL = 1_700_000_000
ADDR_NO_RANDOMIZE = 0x0040000  # personality(2)
STUCK = 20  # real seconds without a switch from one thread to another


class DeviceTime(Value):
    """Seconds that kernels ran on a simulated GPU, as the simulated driver accounts for them."""

    total: float  # since the driver was made, of all processes
    living: dict[int, float]  # of processes that live, by pid

    def of(self, pid: int) -> float:
        return self.living.get(pid, 0.0)


def device_time(root: str, gpu: int = 0) -> DeviceTime:
    """The account of a GPU of the driver in `root`: exact when a kernel of 0.2 ms ends, else up to 2 ms late."""
    living = {one.pid: one.busy_ns / 1e9 for one in report(root).processes if one.gpu == gpu}
    with open(os.path.join(root, STATE), "rb") as file:
        # struct sim_partition of native/simdriver/common/state.h; a GPU has one, and 8 of MIG devices.
        size = 32 + state.SLOTS // 4 + 16 * state.HISTORY
        file.seek(64 + gpu * 9 * size + 16)
        return DeviceTime(struct.unpack("<Q", file.read(8))[0] / 1e9, living)


libc = ctypes.CDLL(None)


class Stuck(AssertionError):
    """Somebody who has the turn waits for something that is not simulated, or computes without end."""


class World:
    """A clock, and who takes part in its time; see above."""

    def __init__(self, library: str, directory: str, uptime: float = UPTIME) -> None:
        self._path = os.path.join(directory, "clock")
        self._preload = library
        self._inside: dict[int, int] = {}
        self._library = ctypes.CDLL(library)
        for name in ("keeper_now", "keeper_switches"):
            getattr(self._library, name).restype = ctypes.c_uint64
        begin = ctypes.c_uint64(round(uptime * 1e9))
        error = self._library.keeper_create(os.fsencode(self._path), begin, ctypes.c_int64(WALL * 10**9))
        if error:
            raise OSError(error, os.strerror(error), self._path)

    @property
    def now_ns(self) -> int:
        """CLOCK_MONOTONIC, nanoseconds."""
        return int(self._library.keeper_now())

    @property
    def now(self) -> float:
        """The same in seconds."""
        return self.now_ns / 1e9

    def variables(self, before: str = "") -> dict[str, str]:
        """With which a program takes part. `before`: libraries that are preloaded too."""
        return {"LD_PRELOAD": ":".join(filter(None, (before, self._preload))), "NVC_SIM_CLOCK": self._path}

    def start(self, words: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program, and return when it takes part; it goes on when the world does.

        Where one of the words gives NVC_SIM_CLOCK to env(1), only what this starts takes part.
        """
        before = self._library.keeper_joined(0, 0)
        inside = any(word.startswith("NVC_SIM_CLOCK=") for word in words)
        variables = {**env, **({} if inside else self.variables(env.get("LD_PRELOAD", "")))}
        # What hashes addresses takes the same course, if they are the same.
        before_it = libc.personality(ADDR_NO_RANDOMIZE)
        process = subprocess.Popen(words, env=variables, **options)
        libc.personality(before_it)
        end = time.monotonic() + STUCK
        while self._library.keeper_joined(before, ctypes.c_long(50)) == before:
            assert process.poll() is None, f"{words[0]} ended with {process.returncode} and never took part"
            assert time.monotonic() < end, f"{words[0]} does not take part"
        self._inside[process.pid] = self._library.keeper_newest()
        return process

    def pid(self, process: subprocess.Popen[Any]) -> int:
        """The process that took part, where what was started made another one for it."""
        return self._inside[process.pid]

    def wake(self, seconds: float) -> None:
        """Let who is woken, or gets a message, go on so much later from now on."""
        self._library.keeper_wake(ctypes.c_uint64(round(seconds * 1e9)))

    def late(self, seconds: float) -> None:
        """Let threads begin and end so much later in real time, as a busy host may: no course depends on it."""
        self._library.keeper_late(ctypes.c_uint32(round(seconds * 1e6)))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self._go(self.now_ns + round(seconds * 1e9), False)

    def wait(self, descriptors: Sequence[Any], seconds: float) -> list[Any]:
        """Let time pass until one can be read, at most so long. Returns those that can."""
        due = self.now_ns + round(seconds * 1e9)
        while True:
            ready = select.select(descriptors, [], [], 0)[0]
            if ready or self.now_ns >= due:
                return ready
            self._go(due, True)

    def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        """Let time pass until the condition holds, looking each millisecond."""
        due = self.now + seconds
        while not condition():
            assert self.now < due, f"not within {seconds} s"
            self.run(0.001)

    def kill(self, process: subprocess.Popen[Any]) -> None:
        """Kill a program, which must be of this test's own, and wait for its end."""
        process.kill()
        process.wait()
        inside = self._inside.get(process.pid, process.pid)
        if inside != process.pid:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(inside)
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [])
                os.close(fd)
        self.bury(inside)

    def bury(self, pid: int) -> None:
        """A process has ended otherwise than by itself."""
        self._library.keeper_bury(pid)

    def finish(self, process: subprocess.Popen[Any], seconds: float = 1000) -> int:
        """Let time pass until a program has ended. Returns its exit status.

        Where what was started made another one that took part, that one's end; then the other ends in real time.
        """
        with contextlib.suppress(ProcessLookupError):
            with closing(os.pidfd_open(self._inside.get(process.pid, process.pid))) as fd:
                assert self.wait([fd], seconds), f"no end within {seconds} s"
        return process.wait(PATIENCE)

    def output(self, words: Sequence[str], env: Mapping[str, str]) -> str:
        """Let time pass until a program has ended, well. Returns what it wrote, which a pipe must hold."""
        process = self.start(words, env, stdout=subprocess.PIPE, text=True)
        status = self.finish(process)
        assert process.stdout is not None
        with process.stdout as out:
            said: str = out.read()
        assert status == 0, said
        return said

    @property
    def switches(self) -> int:
        """How often the turn went from one thread to another."""
        return int(self._library.keeper_switches())

    def end(self) -> None:
        """Nobody who took part outlives it."""
        for pid in filter(None, map(self._library.keeper_other, range(self._library.keeper_used()))):
            with contextlib.suppress(ProcessLookupError):  # one that ended with who started it
                os.kill(pid, signal.SIGKILL)
        self._library.keeper_end()
        os.unlink(self._path)

    def _go(self, due: int, looking: bool) -> None:
        self._library.keeper_go(ctypes.c_uint64(due), looking)
        last, since = -1, time.monotonic()
        while not self._library.keeper_await(ctypes.c_long(50)):
            holder, switches = self._library.keeper_holder(), self.switches
            if switches != last:
                last, since = switches, time.monotonic()
            elif holder == 0 or is_dead(holder):
                self._library.keeper_bury(holder)
            elif time.monotonic() > since + STUCK:
                raise Stuck(f"process {holder} is in {where(holder)}")


def is_dead(pid: int) -> bool:
    """A process has ended, waited for or not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def where(pid: int) -> str:
    """What the threads of a process do."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm", encoding="utf-8", errors="replace") as name:
            with open(f"/proc/{pid}/task/{task}/syscall", encoding="ascii") as call:
                found.append(f"{name.read().strip()}: {call.read().strip()}")
    return "; ".join(found)


def compile_library(directory: str) -> str:
    """tests/native/virtual as a library to be preloaded."""
    library = os.path.join(directory, "virtual.so")
    sources = sorted(os.path.join(DIRECTORY, name) for name in os.listdir(DIRECTORY) if name.endswith(".c"))
    flags = ("-O2", "-g1", "-shared", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE")
    run("gcc", *WARN, *flags, "-o", library, *sources, "-ldl", "-lpthread", timeout=300)
    return library


@pytest.fixture(scope="session")
def virtual() -> Iterator[str]:
    """The library with which programs are in virtual time, at a path that LD_PRELOAD can hold: without spaces."""
    with tempfile.TemporaryDirectory(prefix="virtual-") as directory:
        library = os.path.join(directory, "virtual.so")
        shutil.copy(kept("virtual", compile_library), library)
        yield library


@pytest.fixture
def world(virtual: str, scratch: str, request: pytest.FixtureRequest) -> Iterator[World]:
    """A world of this test alone; its indirect parameter is for how many seconds the machine is up."""
    made = World(virtual, scratch, getattr(request, "param", UPTIME))
    yield made
    made.end()
