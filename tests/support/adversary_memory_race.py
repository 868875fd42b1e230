"""Programs whose threads are at one handle or address at once: between the driver and the books."""

from __future__ import annotations

import errno
import os

from . import GIB, MIB
from .adversary import Look, Program, Taker, attempt
from .adversary_memory_more import fill
from .vgpushim import Slice

ROUNDS, HANDLES = 300, 40
CALLS = ("fcntl", "openat", "pread", "pwrite", "fstat", "getrandom", "nanosleep", "madvise")


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


def closed_for_all(slice_: Slice, look: Look) -> None:
    """The one that closed its descriptors keeps its place in the ledger, for others too."""
    first = slice_.start().do("alloc a 800m", "closefrom")
    second = slice_.process()
    if attempt(second, "init", "primary 0") == [0, 0]:
        fill(second, "alloc {} 64m", look)
    look()
    first.kill()


def system_calls_that_lie(slice_: Slice, look: Look) -> None:
    for name in CALLS:
        for error in (0, errno.EPERM, errno.ENOSYS):
            process = slice_.start().do("alloc a 512m", f"answerfor {name} {error}")
            fill(process, "alloc {} 256m", look)
            process.kill()


def limits_that_change(slice_: Slice, look: Look) -> None:
    """Each time another half of the quota is written; the larger one is the most that holds."""
    process = slice_.start()
    process.send("threads 8 300m 400")
    while not process.time.wait([process.process.stdout], 0):
        for limit in (1200 * MIB, 2 * GIB):
            slice_.limit(*[limit] * len(slice_.uuids), context_overhead=slice_.context)
            look(moving=True)
    process.receive()
    fill(process, "alloc {} 64m", look)


def commands(*lines: str, start: bool = True) -> Program:
    """What one of them has got, it keeps."""

    def program(slice_: Slice, look: Look) -> None:
        process = slice_.start() if start else slice_.process().do("init")
        for line in lines:
            process.do(line)
            look()

    return program


def functions_of_nodes(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("graph g", "module a", "module b 64k", "functionchanges g a b")
    attempt(process, "instance i g", "run i", "sync")
    look()


TAKERS = (
    Taker(
        "closed for all",
        "a process closes its descriptors, and another asks for memory",
        closed_for_all,
        3 * GIB,
        gpu=False,
    ),
    Taker(
        "system calls that lie",
        "a filter answers for eight system calls: done, EPERM or ENOSYS",
        system_calls_that_lie,
        gpu=False,
    ),
    Taker(
        "limits that change", "the limit goes up and down while eight threads allocate", limits_that_change
    ),
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
        "two threads get a handle of one block, which the maker frees while another process has it open",
        handles_of_two_threads,
    ),
    Taker(
        "the driver's own functions",
        "what cuGetProcAddress answers is read before the shim has changed it",
        commands("addresschanges"),
        gpu=False,
    ),
    Taker(
        "a kernel whose handle is taken away",
        "what cuLibraryGetKernel and cuLibraryEnumerateKernels answer is overwritten before it is in the books",
        commands("kernelchanges", "listchanges"),
        gpu=False,
    ),
    Taker(
        "another context's handle",
        "what cuDevicePrimaryCtxRetain answers is overwritten with a context that has memory",
        commands("primarychanges 5", start=False),
        gpu=False,
    ),
    Taker(
        "another context's handle, again and again",
        "what cuCtxCreate answers is overwritten with a context that is in the books",
        commands("contextchanges 12", start=False),
        4 * GIB,
        gpu=False,
    ),
    Taker(
        "a node whose function changes",
        "the function of a kernel node gets local memory after it was looked at",
        functions_of_nodes,
        gpu=False,
    ),
    Taker(
        "a node that comes late",
        "a thread adds an allocation to a graph while that is instantiated",
        commands("graphraces 20"),
        gpu=False,
    ),
)
