"""Graphs with conditional nodes: they go through the shim as they are, and what their launches take is charged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest import approx
from support import GIB, MIB
from support.vgpucap import PERIOD, Capped
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Slice
from support.virtual import World, device_time


@pytest.mark.parametrize(("times", "ns"), [(10, 1_000_000), (500, 20_000)])
def test_a_loop_is_charged_by_what_it_takes(
    world: World, capped: Callable[..., Capped], tool: str, times: int, ns: int
) -> None:
    slice_ = capped(program=tool)
    slice_.cap(40)
    process = slice_.start().do(f"loop g b {times} {ns}", "instance i g")
    began, rounds = world.now, 0
    while world.now < began + 5:
        process.do("run i", "wait")
        rounds += 1
    took = world.now - began
    one = times * ns / 1e9
    assert rounds * one / took < 0.4 + PERIOD / 5
    # Beside its own work, a round of the loop has a choice and a kernel of the driver's, 6 us in all.
    assert slice_.charged() / took == approx(0.4, abs=2 * one / took + PERIOD / 5)
    assert rounds * one <= slice_.charged() + 2 * one  # the last ones may not have been looked at
    assert slice_.charged() <= rounds * (one + times * 6e-6) * 1.01


def test_its_length_may_change(world: World, capped: Callable[..., Capped], tool: str) -> None:
    """A hundred times as long as before: the cap holds, and what was too much is a debt."""
    slice_ = capped(program=tool)
    slice_.cap(50)
    process = slice_.start().do("loop g b 1 200000", "instance i g", "loop h c 100 200000", "instance j h")
    began, before = world.now, device_time(slice_.root).total
    while world.now < began + 5:
        process.do(*["run i"] * 20, "run j", "wait")
    took = world.now - began
    assert (device_time(slice_.root).total - before) / took == approx(0.5, abs=0.03)


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
