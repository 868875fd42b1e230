"""Graphs with conditional nodes: they go through the shim as they are, and what their launches take is charged."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.measured import within
from support.vgpucap import Capped
from support.vgpushim import CONTEXT, GIB, MIB, OUT_OF_MEMORY, Slice

MS = 1e-3


@pytest.mark.parametrize(("times", "ns"), [(10, 1000000), (500, 20000)])
def test_a_loop_is_charged_by_what_it_takes(
    live_capped: Callable[..., Capped], tool: str, times: int, ns: int
) -> None:
    """rows: C10"""
    slice_ = live_capped(program=tool)
    slice_.cap(40)
    process = slice_.start().do(f"loop g b {times} {ns}", "instance i g")
    rounds, took = 0, time.monotonic()
    while time.monotonic() < took + 1.5:
        process.do("run i", "wait")
        rounds += 1
    took = time.monotonic() - took
    process.end()
    assert process.process.returncode == 0
    one = times * ns / 1e9
    within(rounds * one / took, 0.2, 0.42)
    # The last ones may not have been looked at. Beside its own work, a round of the loop has a choice and a kernel.
    within(slice_.charged(), (rounds - 3) * one, rounds * (one + times * 6e-6) * 1.1)


def test_its_length_may_change(live_capped: Callable[..., Capped], tool: str) -> None:
    """A hundred times as long as before: the cap holds, and what was too much is a debt."""
    slice_ = live_capped(program=tool)
    slice_.cap(50)
    process = slice_.start().do("loop g b 1 200000", "instance i g", "loop h c 100 200000", "instance j h")
    began = time.monotonic()
    work = 0.0
    while time.monotonic() < began + 1.5:
        process.do(*["run i"] * 20, "run j", "wait")
        work += (20 + 100) * 0.2 * MS
    took = time.monotonic() - began
    process.end()
    within(work / took, 0.3, 0.54)


def test_the_books_hold(vgpu: Slice) -> None:
    """The memory of a loop's word, and a kernel in its body with more local memory than there is."""
    process = vgpu.start().do(
        "module m 4", "module n 16k", "loop g b 5 1000", "instance i g", "run i", "wait"
    )
    assert vgpu.agree() == CONTEXT + 2 * MIB
    assert process.code("kernelnode k b n") == OUT_OF_MEMORY
    process.do("kernelnode k b m", "instance j g", "run j", "wait", "dropinstance i", "dropinstance j")
    vgpu.limit(8 * GIB, GIB)
    process.do("kernelnode l b n", "instance i g", "run i", "wait", "dropinstance i", "dropgraph g")
    assert vgpu.used() >= vgpu.taken()
    process.end()
    assert process.process.returncode == 0
