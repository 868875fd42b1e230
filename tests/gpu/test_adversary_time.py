"""Programs that try to have more of a GPU's time than their cap, with nvcd beside another tenant.

What the shim by itself keeps is for programs that mean well: tests/native/test_vgpu_pacer.py judges that.

Each runs for NVC_ADVERSARY_SECONDS (10), and needs half a second more. NVC_ADVERSARY_PROGRAMS names some of them.
Kernels take as long as they say, and calls that set or copy memory as long as in a full queue: both are measured
without the shim. What a program owes at its end is paid before it says how long it took, so none may have a point
more than its cap. What the other tenant has beside `honest` stands in each row: so much of it is lost when the GPU
changes from one tenant to the other, without any program that means harm.
"""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from support import CLEAN_ENV, STAGE, gpus, run
from support.adversary_table import BARE, SECONDS, Note, chosen, seconds_left
from support.adversary_time import WAYS, Way, compile_take_time, lengths
from support.gpucap import Sliced
from support.nvcd import Place
from support.vgpucap import Worker

pytestmark = pytest.mark.gpu
POINTS, POINTS_BESIDE = 1.0, 2.0
START = 20.0  # seconds that a program may take before and after
SILENCE = 20.0  # seconds that the one beside it may say nothing, which it does every 0.1 s
NS = 1000000  # a kernel of the tenant beside it
REAL = {way.name: way for way in WAYS if way.gpu}
CASES = [(cap, REAL[name]) for name, cap in chosen(REAL)]
YARD = [way for way in REAL.values() if way.copies or way.name == "honest"]
LEAST = 5.0  # points of the GPU that a program may leave to pauses, by itself and without the shim


class Had:
    """What a program had, in percent, and when that was, in seconds of CLOCK_MONOTONIC.

    Of one that was started over: all that it had, from its first beginning to its last end.
    """

    def __init__(self, *runs: subprocess.CompletedProcess[str]) -> None:
        used, self.since = 0.0, math.inf
        for done in runs:
            assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
            ms, _, since, until, *ended = done.stdout.split()
            used += float(ms) / 1000
            self.since, self.until = min(self.since, float(since)), float(until)
        self.seconds = self.until - self.since
        assert self.seconds > 0, "it ended as it began"
        self.share = 100 * used / self.seconds
        self.ended = " ".join(ended)  # early, by what
        again = [f"started {len(runs)} times"] if len(runs) > 1 else []
        brackets = "; ".join([self.ended] * bool(ended) + again)
        self.said = f"{self.share:.2f}{f' ({brackets})' if brackets else ''}"


class Beside(NamedTuple):
    """What a program had beside the tenant, and the tenant meanwhile."""

    had: Had
    other: float  # percent


class Programs:
    """take_time, calibrated, in the slice of a directory and in slices of `vgpu run` beside another tenant."""

    def __init__(self, sliced: Sliced) -> None:
        self.sliced = sliced
        self.directory = tempfile.mkdtemp(prefix="take-", dir="/tmp")
        self.program = compile_take_time(self.directory)
        bare = {**sliced.environment(), "LD_LIBRARY_PATH": sliced.real_directory()}
        self.bare = bare
        self.rounds = run(self.program, "calibrate", "0", env=bare).stdout.strip()
        self.lengths = lengths(run(self.program, "lengths", "0", env=bare).stdout)
        self.honest: dict[int, Beside] = {}
        self.place: Place | None = None
        self.beside: tuple[int, Worker] | None = None
        # What the driver does with its first client is done once, and the GPU stays awake.
        sliced.native(ns=NS, rounds=sliced.rounds(NS), batch=1, idle=1, seconds=1e6).started()
        native = sliced.native(ns=NS, rounds=sliced.rounds(NS), batch=0, seconds=2, warm=0.3)
        self.rate = native.started().result().rate

    def call(
        self, words: list[str], env: dict[str, str], way: Way, seconds: float = SECONDS, cap: int = 100
    ) -> Had:
        """With a cap a program waits at its end for what it has queued, which the cap makes longer."""
        known = f"{self.rounds},{self.lengths.get(way.name, 0)}"
        runs: list[subprocess.CompletedProcess[str]] = []
        until = time.monotonic() + seconds
        while not runs or way.breaks and time.monotonic() < until - 0.1:
            left = until - time.monotonic() if runs else seconds
            runs.append(
                subprocess.run(
                    [*words, self.program, way.name, str(left), known],
                    env=env, capture_output=True, text=True, timeout=3 * seconds * 100 / cap + START,
                )
            )  # fmt: skip
        return Had(*runs)

    def always_busy(self) -> dict[str, Any]:
        """Words of a worker with kernels of 1 ms in its queue at any time, which says how many there were."""
        return {"ns": NS, "rounds": self.sliced.rounds(NS), "batch": 0, "seconds": 1e6, "trace": 100}

    def nobody_else(self) -> None:
        """The keeper alone uses the GPU."""
        self.end()
        assert gpus.processes() <= 1, "others than the keeper use the GPU"

    def without_nvc(self, way: Way, seconds: float) -> tuple[Had, Had, float]:
        """What a program has by itself; and beside one that always has kernels; and what that one has meanwhile."""
        self.nobody_else()
        alone = self.call([], self.bare, way, seconds)
        other = self.sliced.native(warm=0.3, **self.always_busy()).started()
        try:
            return alone, *self.meanwhile(other, [], self.bare, way, seconds)
        finally:
            other.kill()

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
        """The one beside, with all that the cap leaves."""
        if self.beside is not None and self.beside[0] != cap:
            self.beside[1].kill()
            self.beside = None
        if self.beside is None:
            words, variables = self.words(100 - cap)
            before = (*words[1:], self.sliced.tool)
            made = Worker(words[0], variables, *before, warm=0.5, **self.always_busy())
            self.beside = cap, made.started()
        return self.beside[1]

    def with_tenant(self, cap: int, way: Way) -> Beside:
        """A program with this cap beside the tenant that has the rest."""
        try:
            tenant = self.tenant(cap)
            return Beside(*self.meanwhile(tenant, *self.words(cap), way, SECONDS, cap))
        except BaseException:
            self.end()  # the next program has another nvcd and another tenant
            raise

    def beside_honest(self, cap: int) -> Beside:
        """`honest`, which is measured once for each cap."""
        if cap not in self.honest:
            self.honest[cap] = self.with_tenant(cap, REAL["honest"])
        return self.honest[cap]

    def meanwhile(
        self,
        other: Worker,
        words: list[str],
        variables: dict[str, str],
        way: Way,
        seconds: float,
        cap: int = 100,
    ) -> tuple[Had, float]:
        """What a program had, and what another one had meanwhile, in percent."""
        had = self.call(words, variables, way, seconds, cap)
        points = [other.progress(SILENCE)]
        while points[-1][0] < had.until * 1000:
            points.append(other.progress(SILENCE))
        inside = [point for point in points if point[0] >= had.since * 1000]
        assert len(inside) > 2, f"{had.seconds:.3f} s are too short to measure the other one; {had.said}"
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


@pytest.mark.parametrize("cap, way", CASES, ids=lambda one: getattr(one, "name", str(one)))
def test_adversary_time(programs: Programs, cap: int, way: Way, note: Note) -> None:
    assert seconds_left() > 2 * SECONDS, "no time left"
    honest = programs.beside_honest(cap)
    found = honest if way.name == "honest" else programs.with_tenant(cap, way)
    for name, one in (("honest", honest), (way.name, found)):
        note(name, f"beside, {cap} %", one.had.said)
        note(name, f"the tenant beside, {cap} %", f"{one.other:.2f}")
        note(name, f"the tenant beside honest, {cap} %", f"{honest.other:.2f}")
    had, other = found
    assert had.share <= cap + POINTS
    assert other >= 100 - cap - POINTS_BESIDE
    assert not had.ended or way.ends, had.ended


@pytest.mark.parametrize("way", YARD, ids=lambda way: way.name)
def test_adversary_yardstick(programs: Programs, way: Way, note: Note) -> None:
    """Without nvc, a program that has the whole GPU counts that it has it, and two count no more than it together.

    Where two count more, their work runs at once: copy engines work beside the kernels of another process.
    """
    had, beside, other = programs.without_nvc(way, 1)
    for column, value in zip(BARE, (had.share, beside.share, other)):
        note(way.name, column, f"{value:.2f}")
    assert 100 - LEAST <= had.share <= 100 + POINTS
    assert beside.share <= had.share + POINTS
