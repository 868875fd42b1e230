"""Programs whose threads are at one handle or address at once: between the driver and the books."""

from __future__ import annotations

import os

from . import GIB
from .adversary import Look, Program, Taker
from .vgpushim import Slice

ROUNDS, HANDLES = 300, 40


def mappings(command: str) -> Program:
    """What the books have lost stays mapped: without the turn of vmm.h, in about one run of three."""

    def program(slice_: Slice, look: Look) -> None:
        slice_.start().do(command)
        look()

    return program


def handles_of_two_threads(slice_: Slice, look: Look) -> None:
    path = os.path.join(slice_.root, "handle")
    maker, taker = slice_.start(), slice_.start()
    for _ in range(HANDLES):
        if maker.code("alloc a 64m"):
            break
        maker.do(f"ipcgettwice a {path}")
        taker.do(f"ipcopen b {path}")
        maker.do("free a")
        look()
        taker.do("ipcclose b")
    maker.info()
    look.counted(2 * slice_.context)


TAKERS = (
    Taker(
        "a release behind a mapping",
        "a thread maps a block, and another gives its handle back before the first is back",
        mappings(f"mapraces {ROUNDS}"),
        4 * GIB,
    ),
    Taker(
        "a mapping behind an unmapping",
        "a thread unmaps a block, and another maps the next one there before the first is back",
        mappings(f"unmapraces {ROUNDS}"),
        4 * GIB,
    ),
    Taker(
        "two threads get a handle",
        "of the same memory, which the maker frees while another process has it open",
        handles_of_two_threads,
    ),
)
