"""Programs of the catalogue whose memory looks free, another GPU's, or smaller than it is."""

from __future__ import annotations

import os

from . import GIB
from .adversary import Look, Program, Taker, attempt
from .vgpushim import Slice

PTX = ".version 8.0\n.target sm_90\n.address_size 64\n.global .b8 data[{}];\n.visible .entry work()\n{{\nret;\n}}\n"


def a_file_that_is_exchanged(how: str) -> Program:
    """It may be a small one when the shim looks at it, and a large one when the driver loads it."""

    def program(slice_: Slice, look: Look) -> None:
        paths = [os.path.join(slice_.root, name) for name in ("small.ptx", "large.ptx")]
        for path, size in zip(paths, (16, 3 * GIB)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(PTX.format(size))
        process = slice_.start()
        attempt(process, f"loadexchanged {how} {' '.join(paths)} 4000")
        look()

    return program


def graphs_that_keep_and_are_trimmed(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("stream s")
    for name in "abcdef":
        process.do(f"graph {name}", f"keepnode {name} 500m")
        attempt(process, f"instance {name.upper()} {name}", f"run {name.upper()}", "wait", "trimgraphs 0")
        look()


def graphs_that_keep_while_others_go(slice_: Slice, look: Look) -> None:
    """The trim gives something back, so that it is not known who still has memory."""
    process = slice_.start().do("stream s")
    for name in "abcdef":
        attempt(process, "graph z", "node z 300m", "instance Z z", "run Z", "wait")
        process.do(f"graph {name}", f"keepnode {name} 300m")
        attempt(process, f"instance {name.upper()} {name}", f"run {name.upper()}", "wait")
        attempt(process, "dropinstance Z", "dropgraph z", "trimgraphs 0")
        look()


def graphs_whose_memory_others_free(slice_: Slice, look: Look) -> None:
    """One after the other has the same memory, and then all at once."""
    process = slice_.start().do("stream s")
    for name, other in zip("abcdef", "ghijkl"):
        process.do(f"graph {name}", f"keepnode {name} 500m", f"graph {other}", f"freenode {other} {name}")
        attempt(process, f"instance {name.upper()} {name}", f"run {name.upper()}", "wait")
        attempt(process, f"instance {other.upper()} {other}", f"run {other.upper()}", "wait")
        look()
    for name in "ABCDEF":
        attempt(process, f"run {name}", "wait")
        look()


def graphs_with_memory_in_pieces(slice_: Slice, look: Look) -> None:
    """What four leave unused in the store is enough for a fifth by its size alone."""
    process = slice_.start().do("stream s")
    for name, size in zip("abcd", (288, 320, 352, 256)):
        process.do(f"graph {name}", f"node {name} {size}m", f"instance {name.upper()} {name}")
        process.do(f"run {name.upper()}", "wait")
    for name in "abcd":
        process.do(f"dropinstance {name.upper()}", f"dropgraph {name}")
    process.do("graph e", "node e 400m", "instance E e", "run E", "wait")
    look()


def managed_memory_of_another_device(slice_: Slice, look: Look) -> None:
    slice_.limit(2 * GIB, *[40 * GIB] * (len(slice_.uuids) - 1))
    process = slice_.start().do("primary 1", "managed a 6g", "primary 0", "stream s")
    attempt(process, "prefer a 6g 0", "prefetch a 6g 0", "prefetch2 a 6g 0", "wait")
    look()


def a_free_that_is_captured(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    for _ in range(6):
        attempt(process, "stream s", "alloc a 500m", "capture", "freeasync a", "captured g")
        look()


TAKERS = (
    Taker(
        "a module's file is exchanged",
        "cuModuleLoad of a file that another takes the place of",
        a_file_that_is_exchanged("module"),
    ),
    Taker(
        "a library's file is exchanged",
        "cuLibraryLoadFromFile of a file that another takes the place of",
        a_file_that_is_exchanged("library"),
    ),
    Taker(
        "graphs that keep memory",
        "cuDeviceGraphMemTrim after each launch",
        graphs_that_keep_and_are_trimmed,
    ),
    Taker(
        "graphs that keep while others go",
        "cuDeviceGraphMemTrim after each launch gives back the memory of another graph",
        graphs_that_keep_while_others_go,
    ),
    Taker(
        "graphs whose memory others free",
        "graphs free what another has allocated, one after the other; then all allocate",
        graphs_whose_memory_others_free,
    ),
    Taker(
        "graphs with memory in pieces",
        "a graph finds enough unused memory of others, in pieces that are too small",
        graphs_with_memory_in_pieces,
    ),
    Taker(
        "managed memory of another GPU",
        "6 GiB charged to one GPU are prefetched to another",
        managed_memory_of_another_device,
        gpu=False,
    ),
    Taker("a captured free", "cuMemFreeAsync in a stream that captures", a_free_that_is_captured),
)
