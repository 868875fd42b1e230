"""Graphs with a loop on the device, whose length nobody knows when they are launched (CUDA 12.4)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from support import MIB, need, run
from support.gpucap import Sliced
from support.realslice import RealSlice

pytestmark = pytest.mark.gpu
HERE = os.path.dirname(os.path.abspath(__file__))
TURNS = 100  # of the body, for each launch
Measure = Callable[[str, object], None]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("program") / "vgpu_while")
    run(need("gcc"), "-O2", "-o", path, f"{HERE}/vgpu_while.c", "-ldl")
    return path


def test_c10_a_loop_on_the_device(sliced: Sliced, program: str, measured: Measure) -> None:
    words = [program, "2", str(TURNS), str(sliced.rounds(50000))]
    capped = sliced.environment()
    native = {**capped, "LD_LIBRARY_PATH": sliced.real_directory()}

    def rate(environment: dict[str, str]) -> float:
        turns, seconds = run(*words, env=environment).stdout.split()
        return int(turns) / float(seconds)

    alone = rate(native)
    found = {}
    for cap in (25, 50, 75):
        sliced.cap(cap)
        found[cap] = rate(capped)
    alone = max(alone, rate(native))  # nothing but the host's own noise makes it slower
    wrong = []
    for cap, got in found.items():
        share = 100 * got / alone
        measured("loop of 100 kernels of 50 us in a graph: cap, got", f"{cap} %, {share:.2f} %")
        if abs(share - cap) > 2:
            wrong.append((cap, share))
    assert wrong == []


def test_books_of_a_loop(slice_: RealSlice, program: str, measured: Measure) -> None:
    """A kernel in the loop's body needs 16 KiB for each thread."""
    taken, used = slice_.taken(), slice_.used()
    words = [program, "0", "3", "1", "local"]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=slice_.environment(), text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "done\n"
        outside, books = slice_.taken() - taken, slice_.used() - used
    finally:
        process.communicate(timeout=60)
    measured("graph with a loop: MiB taken, counted", f"{outside // MIB}, {books // MIB}")
    assert abs(books - outside) <= 64 * MIB and process.returncode == 0
