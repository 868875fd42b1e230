"""Programs of the catalogue whose memory is not free yet, or that change what they ask for while they ask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from . import GIB, MIB
from .adversary import Look, Program, Taker, attempt
from .adversary_memory_more import fill, opened_elsewhere
from .vgpushim import OUT_OF_MEMORY, Process, Slice

PTX = """.version 8.0
.target sm_90
.address_size 64
.global .align 4 .b8 data[314572800];
.global .align 4 .b8 a, b[4];
.visible .entry work()
{
ret;
}
"""


@contextmanager
def held(slice_: Slice) -> Iterator[Process]:
    """A process that ends in any case: by itself it would wait for its stream."""
    process = slice_.start().do("stream s")
    try:
        yield process
    finally:
        process.kill()


def freed_behind_a_wait(count: int, size: str) -> Program:
    def program(slice_: Slice, look: Look) -> None:
        with held(slice_) as process:
            attempt(process, "hold", f"freemany {count} {size}")
            look()
            fill(process, "alloc {} 64m", look)

    return program


def a_pool_in_pieces_behind_a_wait(slice_: Slice, look: Look) -> None:
    """A growth of the pool could not be undone before the stream goes on."""
    with held(slice_) as process:
        process.do("pool p 0", "keep p")
        for name in "abcd":
            process.do(f"frompool {name} 300m p")
        for name, small in zip("abcd", "efgh"):
            process.do(f"freeasync {name}", "sync", f"frompool {small} 160m p")
        fill(process, "alloc {} 16m", look)
        process.do("hold")
        process.send("frompool z 200m p")
        while not process.time.wait([process.process.stdout], 0):
            look()
        answer = process.receive()
        # The driver of an H200 puts pieces together, and the pool does not grow, as `look` has seen.
        assert answer == [str(OUT_OF_MEMORY)] or not look.books
        process.send("frompool z 120m p")
        while not process.time.wait([process.process.stdout], 0):
            look()


def books_that_are_full(*commands: str) -> Program:
    """No address space for more entries of the shim's table."""

    def program(slice_: Slice, look: Look) -> None:
        process = slice_.start().do(
            "stream s", "pool p 0", "reserve r 256m", "reserve q 256m", "reserve t 256m"
        )
        process.do("create a 256m 0", "create b 256m 0", "create c 256m 0")
        attempt(process, "roomyheap", "nomorespace", "crowdbooks 4000")
        for at, handle in zip("rqt", "abc"):
            attempt(process, "crowdbooks 100", f"map {at} {handle} 256m 0", f"release {handle}")
            look()
        attempt(process, *commands)
        look()
        fill(process, "alloc {} 64m", look)

    return program


def flips(what: str) -> Program:
    """Charged to the second GPU, where there is room, and taken from the first."""

    def program(slice_: Slice, look: Look) -> None:
        slice_.limit(2 * GIB, *[40 * GIB] * (len(slice_.uuids) - 1), context_overhead=slice_.context)
        process = slice_.start().do("stream s")
        attempt(process, f"flips {what} 400")
        taken = slice_.taken() - look.before[0]
        process.kill()
        assert taken <= look.taker.limit + look.taker.slack, taken

    return program


def an_answer_that_is_overwritten(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    attempt(process, "answers 2000")
    look()


def a_trim_beside_a_launch(slice_: Slice, look: Look) -> None:
    """The launch has its memory on the first GPU, and waits for the second's: then another takes the first's."""
    with held(slice_) as process:
        process.do("primary 1", "primary 0", "graph g", "node g 900m", "node g 900m 1", "instance G g")
        process.do("run G", "sync", "trimgraphs 1", "primary 1", "alloc x 1400m", "primary 0", "hold")
        attempt(process, "launchaside G")
        attempt(process, "trimgraphs 0", "alloc y 900m", "primary 1", "free x", "primary 0", "joinaside")
        look()


def a_library_in_anothers_place(slice_: Slice, look: Look) -> None:
    slice_.start().do("crowdbooks 9000", "libraryraces 30")
    look()


def memory_that_goes_while_a_module_comes(slice_: Slice, look: Look) -> None:
    path = os.path.join(slice_.root, "image")
    with open(path, "w", encoding="utf-8") as file:
        file.write(PTX)
    slice_.start().do(f"loadraces 100 {path}")
    look()


def altered_handles(slice_: Slice, look: Look) -> None:
    """In a handle of the simulated driver is how many bytes it is for: another process says fewer."""
    path = os.path.join(slice_.root, "handle")
    maker, taker = slice_.start(), slice_.start()
    for name in "abcd":
        if maker.code(f"alloc {name} 256m"):
            break
        maker.do(f"ipcget {name} {path}")
        with open(path, "r+b") as file:
            handle = file.read().replace((256 * MIB).to_bytes(8, "little"), (4096).to_bytes(8, "little"))
            file.seek(0)
            file.write(handle)
        attempt(taker, f"ipcopen {name} {path}")
        maker.do(f"free {name}")
        look()
    fill(maker, "alloc {} 64m", look)


TAKERS = (
    Taker(
        "small blocks behind a wait",
        "cuMemFreeAsync of 400 blocks of 1 MiB in a stream that waits",
        freed_behind_a_wait(400, "1m"),
    ),
    Taker(
        "blocks behind a wait",
        "cuMemFreeAsync of four blocks of 256 MiB in a stream that waits",
        freed_behind_a_wait(4, "256m"),
    ),
    Taker(
        "a full pool in pieces behind a wait",
        "cuMemAllocFromPoolAsync of more than any piece that is free, in a stream that waits",
        a_pool_in_pieces_behind_a_wait,
    ),
    Taker(
        "books without room, mappings",
        "RLIMIT_AS keeps the shim's table of allocations small; blocks are mapped, and their handles given back",
        books_that_are_full(),
        gpu=False,
    ),
    Taker(
        "books without room, pools",
        "RLIMIT_AS keeps the shim's table of allocations small; pools are created",
        books_that_are_full(
            "crowdbooks 100",
            "pool u 0",
            "frompool a 900m u",
            "frompool a 400m u",
            "pool v 0",
            "frompool a 900m v",
        ),
        gpu=False,
    ),
    Taker("an array that changes", "a thread changes the descriptor of an array meanwhile", flips("array")),
    Taker(
        "a place that changes",
        "a thread changes the GPU of cuMemCreate meanwhile",
        flips("place"),
        gpu=False,
    ),
    Taker(
        "a pool whose place changes",
        "a thread changes the GPU of cuMemPoolCreate meanwhile",
        flips("pool"),
        gpu=False,
    ),
    Taker(
        "an answer that is overwritten",
        "a thread writes another block's address over the answer of cuMemAlloc",
        an_answer_that_is_overwritten,
    ),
    Taker(
        "a trim beside a launch",
        "cuDeviceGraphMemTrim between a launch that counts on a graph's memory and the driver's call",
        a_trim_beside_a_launch,
        gpu=False,
    ),
    Taker(
        "a library in another's place",
        "a library is loaded while one unloads whose handle it gets",
        a_library_in_anothers_place,
    ),
    Taker(
        "memory that goes while a module comes",
        "a thread frees 900 MiB while a module is loaded whose size is measured",
        memory_that_goes_while_a_module_comes,
    ),
    Taker(
        "small blocks opened elsewhere",
        "blocks of 1 MiB, of which the maker lets go once another process has them open",
        opened_elsewhere(900, "1m", "64m"),
        4 * GIB,
    ),
    Taker(
        "altered handles",
        "an IPC handle is changed to be of 4 KiB before another process opens it, and the maker frees the block",
        altered_handles,
        gpu=False,
    ),
)
