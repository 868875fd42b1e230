"""Programs that try to have more memory than their slice, by the simulated driver's own count."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from support.adversary import Taker
from support.vgpushim import CONTEXT, GIB, Process, Slice

Look = Callable[[], None]


def attempt(process: Process, *commands: str) -> list[int]:
    """The driver's answers; a refusal ends nothing."""
    return [process.code(command) for command in commands]


def primary_context_between_two_threads(slice_: Slice, look: Look) -> None:
    process = slice_.process().do("init", "handovers 5000")
    look()
    assert slice_.agree() == CONTEXT
    process.do("leave 0")
    assert slice_.agree() == 0


def a_graph_of_a_million_nodes(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("graph g", f"empties g {1 << 20}", "node g 6g")
    attempt(process, "instance i g", "run i", "sync")
    look()


def a_graph_in_many_graphs(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("graph a", "node a 6g")
    for inner, outer in pairwise("abcdefghijklmnop"):
        process.do(f"graph {outer}", f"child {outer} {inner}")
    attempt(process, "instance I p", "run I", "sync")
    look()


def a_graph_that_uploads_itself(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("graph g", "node g 6g")
    attempt(process, "uploaded i g")
    look()
    attempt(process, "run i", "sync")


def local_memory_in_other_contexts(how: str) -> Callable[[Slice, Look], None]:
    def program(slice_: Slice, look: Look) -> None:
        process = slice_.start().do("library l 16k", "graph g", "context a 0", "context b 0", "context c 0")
        process.do("primary 0")
        for name in "abc":
            attempt(process, f"{how} g l {name}")
            look()
        attempt(process, "instance i g", "run i", "wait")

    return program


def local_memory_of_functions(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("graph g")
    for name, module in zip("abc", "def"):
        process.do(f"context {name} 0", f"module {module} 16k")
    process.do("primary 0")
    for module in "def":
        attempt(process, f"kernelnode n g {module}")
        look()
    attempt(process, "instance i g", "run i", "wait")


TAKERS = (
    Taker("primary context between two threads", primary_context_between_two_threads),
    Taker("a graph of a million nodes", a_graph_of_a_million_nodes),
    Taker("a graph in many graphs", a_graph_in_many_graphs),
    Taker("a graph that uploads itself", a_graph_that_uploads_itself),
    Taker("local memory in other contexts", local_memory_in_other_contexts("kernelin"), 8 * GIB),
    Taker(
        "local memory in other contexts, any node", local_memory_in_other_contexts("anykernelin"), 8 * GIB
    ),
    Taker("local memory of functions", local_memory_of_functions, 8 * GIB),
)


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.name.replace(" ", "-"))
def test_no_more_than_the_limit(vgpu: Slice, taker: Taker) -> None:
    vgpu.limit(*[taker.limit] * len(vgpu.uuids))

    def look() -> None:
        for device in range(len(vgpu.uuids)):
            taken = vgpu.taken(device)
            assert taken <= taker.limit + taker.slack, (device, taken)
            assert taken <= vgpu.used(device) + taker.slack, (device, taken)

    taker.program(vgpu, look)
    look()
