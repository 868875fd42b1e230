"""Programs that try to have more of a GPU's time than their cap: alone, and with nvcd beside another tenant.

Each runs for NVC_ADVERSARY_SECONDS (10). Kernels take as long as they say, by a calibration without the shim.
What a program owes at its end is paid before it says how long it took, so none may have a point more than its cap.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest
from support import CLEAN_ENV, STAGE, gpus, run
from support.adversary_table import SECONDS, Note, seconds_left
from support.adversary_time import WAYS, Way, compile_take_time
from support.gpucap import Sliced
from support.nvcd import Place
from support.vgpucap import Worker

pytestmark = pytest.mark.gpu
POINTS, POINTS_BESIDE = 1.0, 2.0
START = 40.0  # seconds that a program may take before and after
NS = 1000000  # a kernel of the tenant beside it
SPOILT = ("cut-ledger",)  # whose account says nothing afterwards
REAL = [way for way in WAYS if way.gpu]
CASES = [(setting, cap, way) for setting in ("alone", "beside") for cap in (10, 50) for way in REAL]


class Had:
    """What a program had, in percent, and when that was, in seconds of CLOCK_MONOTONIC."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
        used, took, since, until, *ended = done.stdout.split()
        self.since, self.until, self.seconds = float(since), float(until), float(took) / 1000
        self.share = 100 * float(used) / float(took)
        self.ended = " ".join(ended)  # early, by what
        self.said = f"{self.share:.2f}{f' ({self.ended})' if ended else ''}"


class Programs:
    """take_time, calibrated, in the slice of a directory and in slices of `vgpu run` beside another tenant."""

    def __init__(self, sliced: Sliced) -> None:
        self.sliced = sliced
        self.directory = tempfile.mkdtemp(prefix="take-", dir="/tmp")
        self.program = compile_take_time(self.directory)
        bare = {**sliced.environment(), "LD_LIBRARY_PATH": sliced.real_directory()}
        self.rounds = run(self.program, "calibrate", "0", env=bare).stdout.strip()
        self.place: Place | None = None
        self.beside: tuple[int, Worker] | None = None
        # What the driver does with its first client is done once, and the GPU stays awake.
        sliced.native(ns=NS, rounds=sliced.rounds(NS), batch=1, idle=1, seconds=1e6).started()
        native = sliced.native(ns=NS, rounds=sliced.rounds(NS), batch=0, seconds=2, warm=0.3)
        self.rate = native.started().result().rate

    def call(self, words: list[str], env: dict[str, str], way: Way, seconds: float = SECONDS) -> Had:
        words = [*words, self.program, way.name, str(seconds), self.rounds]
        return Had(
            subprocess.run(words, env=env, capture_output=True, text=True, timeout=3 * seconds + START)
        )

    def alone(self, cap: int, way: Way, seconds: float = SECONDS) -> Had:
        self.end()
        assert gpus.processes() <= 1, "others than the keeper use the GPU"
        self.sliced.cap(cap)
        return self.call([], self.sliced.environment(), way, seconds)

    def words(self, cap: int) -> tuple[list[str], dict[str, str]]:
        """Those of `vgpu run` with a cap."""
        if self.place is None:
            self.place = Place(STAGE, self.directory)
            self.place.start(*([] if gpus.ROOT == "/" else [f"--root={gpus.ROOT}"]))
        launcher = os.path.join(STAGE, "bin/nvc-cli")
        options = (f"--device={gpus.uuid()}", "--memory=8GiB", f"--cores={cap}")
        variables = {**CLEAN_ENV, **gpus.visible()}
        if gpus.ROOT != "/":
            variables["LD_LIBRARY_PATH"] = gpus.libraries()
        return self.place.sliced(launcher, gpus.ROOT, *options), variables

    def tenant(self, cap: int) -> Worker:
        """The one beside, with all that the cap leaves: it has kernels of 1 ms in its queue at any time."""
        if self.beside is not None and self.beside[0] != cap:
            self.beside[1].kill()
            self.beside = None
        if self.beside is None:
            words, variables = self.words(100 - cap)
            known = {"ns": NS, "rounds": self.sliced.rounds(NS), "batch": 0, "warm": 0.5}
            made = Worker(words[0], variables, *words[1:], self.sliced.tool, seconds=1e6, trace=100, **known)
            self.beside = cap, made.started()
        return self.beside[1]

    def with_tenant(self, cap: int, way: Way) -> tuple[Had, float]:
        """What the program had, and what the tenant had meanwhile, in percent."""
        tenant = self.tenant(cap)
        words, variables = self.words(cap)
        had = self.call(words, variables, way)
        points = [tenant.progress()]
        while points[-1][0] < had.until * 1000:
            points.append(tenant.progress())
        inside = [point for point in points if point[0] >= had.since * 1000]
        (first, before), (last, after) = inside[0], inside[-1]
        return had, 100 * 1000 * (after - before) / (last - first) / self.rate

    def end(self) -> None:
        """The tenant beside, and nvcd."""
        if self.beside is not None:
            self.beside[1].kill()
        if self.place is not None:
            self.place.end()
        self.beside = self.place = None


@pytest.fixture(scope="module")
def programs(sliced: Sliced) -> Iterator[Programs]:
    made = Programs(sliced)
    yield made
    made.end()


@pytest.mark.parametrize("setting, cap, way", CASES, ids=lambda one: getattr(one, "name", str(one)))
def test_adversary_time(programs: Programs, setting: str, cap: int, way: Way, note: Note) -> None:
    assert seconds_left() > 2 * SECONDS, "no time left"
    if setting == "alone":
        programs.sliced.new_ledger()
        had = programs.alone(cap, way)
        note(way.name, f"alone, {cap} %", had.said)
        if way.name not in SPOILT:
            note(way.name, f"charged, {cap} %", f"{100 * programs.sliced.charged() / had.seconds:.2f}")
        assert had.share <= cap + POINTS
        assert not had.ended or way.least == 0, had.ended
        return
    had, other = programs.with_tenant(cap, way)
    note(way.name, f"beside, {cap} %", had.said)
    note(way.name, f"the tenant beside, {cap} %", f"{other:.2f}")
    assert had.share <= cap + POINTS
    assert other >= 100 - cap - POINTS_BESIDE


def test_adversary_starting_over(programs: Programs, note: Note) -> None:
    """A kernel of 200 ms a process, again and again: what one leaves unpaid the next one finds."""
    way = Way("once", "")
    programs.sliced.new_ledger()
    programs.alone(10, way)
    start, kernels = time.monotonic(), 0
    while time.monotonic() - start < 2 * SECONDS:
        programs.alone(10, way, 1)
        kernels += 1
    share = 100 * 0.2 * kernels / (time.monotonic() - start)
    note("starting over", "alone, 10 %", f"{share:.2f}")
    assert share <= 10 + POINTS + 100 * 0.2 / (2 * SECONDS)
