"""Slices that are suspended and resumed on a real GPU: the same results, no memory left on it, and what it takes.

One GPU, that nobody else uses.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread
from typing import NamedTuple

import pytest
from support import CLEAN_ENV, STAGE, gpus, run
from support.checkpoint import timed
from support.suspended import HOLDER

pytestmark = pytest.mark.gpu
Measured = Callable[[str, object], None]
NVC = os.path.join(STAGE, "bin/nvc-cli")
PROGRAM = os.path.join(os.path.dirname(__file__), "suspend_load.py")
REQUESTS = os.path.join(os.path.dirname(__file__), "requests_load.py")
CYCLES = int(os.environ.get("NVC_CYCLES", "8"))
BETWEEN = 2  # digests of a program between two cycles, at least
MANY = 1_000_000  # steps
NAME = "suspended-test"
LARGE = 16 << 10  # MiB
LEFT = 16  # MiB of a GPU that the driver may keep for itself
CONTEXT = 1024  # and what a context and its code take, which do not swap


class Program:
    """A program, in a slice called NAME or alone."""

    def __init__(
        self, words: list[str], sliced: bool, name: str = NAME, allocator: str = "", by: str = "checkpoint"
    ) -> None:
        before = [NVC, "vgpu", "run", f"--device={gpus.uuid()}", "--memory=32GiB", f"--name={name}"]
        before += [f"--suspend-by={by}", "--"]
        keep = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NVC_STAGE")}
        keep |= {"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {}
        self.process = subprocess.Popen(
            [*(before if sliced else ()), *words],
            env=keep, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words, f"the program ended with {self.process.wait(30)}"
        return words

    def send(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("read\n")
        self.process.stdin.flush()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def load(kind: str, sliced: bool, steps: int, by: str = "checkpoint") -> Program:
    return Program([shutil.which("python3") or "python3", PROGRAM, kind, str(steps)], sliced, by=by)


def used() -> int:
    """MiB of the GPU in use, by NVML."""
    query = "nvidia-smi", f"--id={gpus.uuid()}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"
    return int(run(*query, env=CLEAN_ENV).stdout)


def listed() -> str:
    """Processes that NVML lists for the GPU; nvidia-smi ignores --id here."""
    query = "nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader"
    lines = run(*query, env=CLEAN_ENV).stdout.splitlines()
    return "\n".join(line for line in lines if line.startswith(gpus.uuid()))


def vgpu(word: str) -> float:
    """Seconds that a command for the slice took."""
    begin = time.monotonic()
    run(NVC, "vgpu", word, NAME, env=CLEAN_ENV)
    return time.monotonic() - begin


def state_of(name: str) -> str:
    return str(json.loads(run(NVC, "vgpu", "show", name, "--format=json", env=CLEAN_ENV).stdout)["state"])


def lasted() -> float:
    """Milliseconds that nvcd's processes took for the last one."""
    found = json.loads(run(NVC, "vgpu", "show", NAME, "--format=json", env=CLEAN_ENV).stdout)
    return int(found["suspensions"]["lastNs"]) / 1e6


def middle(found: list[float]) -> float:
    return sorted(found)[len(found) // 2]


def settled() -> int:
    """MiB in use once whoever ended has given everything back."""
    end = time.monotonic() + 20
    while listed().strip() and time.monotonic() < end:
        time.sleep(0.1)
    run(NVC, "vgpu", "rm", "--gone", env=CLEAN_ENV, check=False)
    return used()


@pytest.mark.parametrize("by", ["checkpoint", "swap"])
@pytest.mark.parametrize("kind", ["train", "decode", "llama"])
def test_the_same_results(nvcd: object, kind: str, by: str, measured: Measured) -> None:
    before, cycles = settled(), CYCLES // 8 if kind == "llama" else CYCLES
    out, back, held, left = [], [], 0, 0
    with load(kind, True, MANY, by) as one:
        assert one.line()[0] == "ready"
        seen: dict[str, str] = {}
        for _ in range(cycles):
            seen.update(one.line() for _ in range(BETWEEN))
            held = max(held, used() - before)
            out.append(vgpu("suspend"))
            left = max(left, used() - before)
            assert by == "swap" or not listed().strip(), listed()
            back.append(vgpu("resume"))
        seen.update(one.line() for _ in range(BETWEEN))
    settled()
    with load(kind, False, int([*seen][-1])) as plain:
        assert plain.line()[0] == "ready"
        wanted = dict(plain.line() for _ in seen)
    name = f"{kind}, {by}"
    measured(f"{name}: MiB of the GPU in use, and when suspended", f"{held}, {left}")
    measured(f"{name}: seconds of suspend and resume, {cycles} times", f"{middle(out):.2f}, {middle(back):.2f}")
    different = sum(wanted[step] != value for step, value in seen.items())
    measured(f"{name}: digests of {len(seen)} that differ from a run without", different)
    assert not different and left <= (CONTEXT if by == "swap" else LEFT)


def test_what_it_takes(nvcd: object, measured: Measured) -> None:
    """16 GiB, by the driver's own calls and by nvc."""
    words = [sys.executable, "-c", HOLDER, "plain", str(LARGE)]
    before = settled()
    with Program(words, False) as plain:
        pid = int(plain.line()[0])
        own = [timed("libcuda.so.1", pid, "Lock", "Checkpoint", "Restore", "Unlock") for _ in range(2)][-1]
        assert not any(code for code, _ in own), own
    settled()
    with Program(words, True) as one:
        one.line()
        found = []
        for _ in range(2):
            found = [vgpu("suspend")]
            left = used() - before
            found.append(vgpu("resume"))
            one.send()
            assert one.line() == ["0", "4711"]
    driver = [own[0][1] + own[1][1], own[2][1] + own[3][1]]
    measured("16 GiB: seconds of the driver's own calls, out and back", ", ".join(f"{each:.2f}" for each in driver))
    measured("16 GiB: seconds of vgpu suspend and resume", ", ".join(f"{each:.2f}" for each in found))
    measured("16 GiB: of the driver's", ", ".join(f"{one / own:.2f}" for one, own in zip(found, driver)))
    measured("16 GiB: MiB of the GPU in use when suspended", left)
    assert left <= LEFT and all(one <= 1.1 * own + 0.5 for one, own in zip(found, driver))


def test_what_a_swap_takes(nvcd: object, measured: Measured) -> None:
    """16 GiB by the programs themselves: first without room in the host's memory, then with it."""
    words = [sys.executable, "-c", HOLDER, "plain", str(LARGE)]
    before = settled()
    found: list[list[float]] = []  # ms out and back, of the commands and of what nvcd has done for them
    with Program(words, True, by="swap") as one:
        one.line()
        held = used() - before
        for _ in range(3):
            took = [vgpu("suspend") * 1e3, lasted()]
            left = used() - before
            took += [vgpu("resume") * 1e3, lasted()]
            one.send()
            assert one.line() == ["0", "4711"]
            found.append(took)
    for name, (out, moved_out, back, moved_back) in (("first", found[0]), ("warm", found[-1])):
        speeds = ", ".join(f"{LARGE * 1.048576 / each:.1f}" for each in (moved_out, moved_back))
        measured(f"16 GiB by swap, {name}: ms of vgpu suspend and resume", f"{out:.0f}, {back:.0f}")
        measured(f"16 GiB by swap, {name}: ms of nvcd for them", f"{moved_out:.0f}, {moved_back:.0f}")
        measured(f"16 GiB by swap, {name}: GB/s of that", speeds)
    measured("16 GiB by swap: MiB of the GPU in use, and when suspended", f"{held}, {left}")
    assert left <= CONTEXT and max(found[-1]) < 2000


class Crowd(NamedTuple):
    """Tenants that have more than there is room for."""

    tenants: int
    size: int  # MiB of each
    room: int  # tenants
    idle: str  # --idle-suspend
    pause: float  # seconds between two requests to one, in the mean
    work: float  # seconds that a request takes alone
    part: float  # of these seconds, in which the GPU works
    seconds: int  # of requests
    by: str = "checkpoint"

    def __str__(self) -> str:
        work = f"{self.work} s each {self.work + self.pause}"
        return f"{self.tenants} tenants of {self.size >> 10} GiB, room for {self.room}, {work}, {self.by}"


#: Ten work for a tenth of the time, as notebooks do: they think more than the GPU works. With checkpoints of 9 s
#: there is no time for a request every 6 s, so that is measured and not judged.
CROWDS = [
    Crowd(3, 8 << 10, 2, "2s", 6, 0, 1, 60),
    Crowd(10, 12 << 10, 3, "1h", 54, 6, 0.2, 260),
    Crowd(10, 12 << 10, 3, "1h", 54, 6, 0.2, 120, "swap"),
]


def request(one: Program, rng: random.Random, crowd: Crowd, until: float, found: list[float]) -> None:
    """Asks at random moments until then."""
    while time.monotonic() + (pause := rng.expovariate(1 / crowd.pause)) < until:
        time.sleep(pause)
        one.send()
        took, value = one.line()
        assert value == "3"
        found.append(float(took))


def ballast(size: int, room: int, contexts: int) -> list[str]:
    """A program that leaves room for tenants of `size` MiB, half of one and contexts, of an unused GPU."""
    query = "nvidia-smi", f"--id={gpus.uuid()}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"
    free = int(run(*query, env=CLEAN_ENV).stdout)
    return [sys.executable, "-c", HOLDER, "plain", str(free - room * size - contexts * CONTEXT - size // 2)]


@pytest.mark.parametrize("crowd", CROWDS, ids=str)
def test_idle_slices_make_room(nvcd: object, measured: Measured, crowd: Crowd) -> None:
    """All are served, and none is lost: a thread that waits for its answer ends the test."""
    python = shutil.which("python3") or "python3"
    settled()
    taken = ballast(crowd.size, crowd.room, crowd.tenants if crowd.by == "swap" else crowd.room)  # they do not swap
    policy = NVC, "vgpu", "policy", gpus.uuid()
    found: list[list[float]] = [[] for _ in range(crowd.tenants)]
    with ExitStack() as stack:
        tenants: list[Program] = []
        for number in range(crowd.tenants):
            words = [python, REQUESTS, str(crowd.size), str(crowd.work), str(crowd.part)]
            name = f"{NAME}-{number}" if number else NAME
            tenants.append(stack.enter_context(Program(words, True, name, by=crowd.by)))
            assert tenants[-1].line()[0] == "ready"
            if not number:
                exchange = [vgpu("suspend") + vgpu("resume") for _ in range(2)][-1]
                stack.enter_context(Program(taken, False)).line()
                run(*policy, f"--idle-suspend={crowd.idle}", env=CLEAN_ENV)
                stack.callback(run, *policy, "--idle-suspend=off", env=CLEAN_ENV)
        end = time.monotonic() + crowd.seconds
        threads = [
            Thread(target=request, args=(one, random.Random(place), crowd, end, found[place]))
            for place, one in enumerate(tenants)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(crowd.seconds + 120)
        assert not any(thread.is_alive() for thread in threads)
    whole = sorted(one for each in found for one in each)
    measured(f"{crowd}: requests of each", ", ".join(str(len(one)) for one in found))
    times = ", ".join(f"{whole[int(len(whole) * part)]:.2f}" for part in (0.5, 0.9, 0.99, 0.9999))
    measured("the same: seconds of a request, p50, p90, p99, most", times)
    waited = (whole[-1] - crowd.work) / exchange
    measured("the same: seconds of one out and one in; the longest wait, in these", f"{exchange:.2f}; {waited:.2f}")
    assert waited <= 2.5 or crowd.tenants == 10


@pytest.mark.parametrize("allocator", ["backend:native", "backend:cudaMallocAsync", "expandable_segments:True"])
def test_allocation_makes_room(nvcd: object, measured: Measured, allocator: str) -> None:
    """Two idle tenants of 8 GiB, and a third whose allocation finds no room: one of the two leaves."""
    size, python = 8 << 10, shutil.which("python3") or "python3"
    words = [python, REQUESTS, str(size)]
    policy = NVC, "vgpu", "policy", gpus.uuid()
    settled()
    taken = ballast(size, 2, 2)
    with ExitStack() as stack:
        run(*policy, "--idle-suspend=1h", env=CLEAN_ENV)
        stack.callback(run, *policy, "--idle-suspend=off", env=CLEAN_ENV)
        stack.enter_context(Program(taken, False)).line()
        tenants = [stack.enter_context(Program(words, True, f"{NAME}-{number}")) for number in range(2)]
        for one in tenants:
            assert one.line()[0] == "ready"
        time.sleep(3)
        begin = time.monotonic()
        tenants.append(stack.enter_context(Program(words, True, f"{NAME}-2", allocator)))
        assert tenants[2].line()[0] == "ready", "its allocation failed"
        took = time.monotonic() - begin
        measured(f"{allocator}: seconds until a third tenant has its 8 GiB, with its start", f"{took:.1f}")
        assert sorted(state_of(f"{NAME}-{number}") for number in range(2)) == ["running", "suspended"]
        assert state_of(f"{NAME}-2") == "running"
        waits = []
        for one in (*tenants, *tenants):
            one.send()
            waited, value = one.line()
            assert value == "3"
            waits.append(float(waited))
        shown = ", ".join(f"{one:.1f}" for one in waits)
        measured(f"{allocator}: seconds of a request to each of the three, twice", shown)
