"""Programs of the catalogue that try to have more memory than their slice: commands of tests/native/vgpu_tool.c.

That tool calls the driver as it is told, and says what the driver answers. Its processes are those of the slice.
"""

from __future__ import annotations

import os
from itertools import pairwise

from . import GIB, MIB
from .adversary import Look, Program, Taker, attempt
from .vgpushim import Slice


def primary_context_between_two_threads(slice_: Slice, look: Look) -> None:
    process = slice_.process().do("init", "handovers 5000")
    look()
    look.counted(slice_.context)
    process.do("leave 0")
    look()
    look.counted(0)


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


def local_memory_in_other_contexts(how: str) -> Program:
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


def sent_to_another(kept: str) -> Program:
    """One process makes blocks, exports them and lets go of each once the other has imported it."""

    def program(slice_: Slice, look: Look) -> None:
        maker, taker = slice_.start(), slice_.start()
        maker.do("create k 256m 0 1 1", "export k f")  # alike, and never sent
        for i in range(12):
            if maker.code("create v 256m 0 1 1"):
                break
            maker.do("export v g")
            (fd,) = maker.ask("show g")
            imported = taker.code(f"importfrom w {maker.pid} {fd} {kept}")
            maker.do("close g", "release v")
            look()
            if imported == 0:
                attempt(taker, f"reserve {chr(97 + i)} 256m", f"map {chr(97 + i)} w 256m 0")
            look()
        taker.kill()
        maker.do("alloc z 256m")

    return program


def sent_and_not_mapped(slice_: Slice, look: Look) -> None:
    maker, taker = slice_.start(), slice_.start()
    for _ in range(12):
        if maker.code("create v 256m 0 1 1"):
            break
        maker.do("export v g")
        (fd,) = maker.ask("show g")
        attempt(taker, f"importfrom w {maker.pid} {fd}")
        maker.do("release v", "close g")
        look()


def sent_to_many(slice_: Slice, look: Look) -> None:
    """The same block for all: each bears it in turn."""
    maker = slice_.start().do("create v 512m 0 1 1", "export v g")
    (fd,) = maker.ask("show g")
    takers = [slice_.start().do(f"importfrom w {maker.pid} {fd}") for _ in range(2)]
    look()
    look.counted(3 * slice_.context + 512 * MIB)
    maker.kill()
    takers[0].info()  # whoever looks, finds the dead
    look()
    look.counted(2 * slice_.context + 512 * MIB)
    takers[0].kill()
    takers[1].info()
    look()
    look.counted(slice_.context + 512 * MIB)


def a_copy_of_a_descriptor(slice_: Slice, look: Look) -> None:
    """The memory lives by the copy, so it counts, though no descriptor has the number that was exported."""
    process = slice_.start()
    for name in "abc":
        process.do("create v 256m 0 1 1", "export v f", f"dup {name} f", "close f", "release v")
        process.info()
        look()
    look.counted(slice_.context + 768 * MIB)
    process.do("close a", "close b")
    process.info()
    look.counted(slice_.context + 256 * MIB)
    process.do("close c")
    process.info()
    look.counted(slice_.context)


def a_descriptor_of_another_contents(slice_: Slice, look: Look) -> None:
    """A number that was exported is soon another file's."""
    process = slice_.start().do("create v 256m 0 1 1", "export v f", "dup d f", "close f")
    process.do("create w 256m 0 1 1", "export w f", "close f", "release v")
    process.info()
    look.counted(slice_.context + 512 * MIB)
    process.do("close d")
    process.info()
    look.counted(slice_.context + 256 * MIB)


def a_kernel_got_without_a_context(get: str, context: str) -> Program:
    """Its library comes to the device with the launch. `context` is current then."""

    def program(slice_: Slice, look: Look) -> None:
        process = slice_.start().do("stream s", "library l 4 6g", "nocontext")
        attempt(process, f"{get} k l", context, "launchkernel k")
        look()
        attempt(process, "launchkernel k", "primary 0", "wait")

    return program


PTX = ".version 8.0\n.target sm_90\n.address_size 64\n{}\n.visible .entry work()\n{{\nret;\n}}\n"
DECLARATIONS = {
    "f16x2 pairs": ".global .align 4 .f16x2 data[1610612736];",
    "bf16x2 pairs": ".global .align 4 .bf16x2 data[1610612736];",
    "vector types": ".global .align 16 .v4 .f32 data[268435456];",
    "a brace in a file name": '.file 1 "a{b"\n.global .align 4 .b8 data[6442450944];',
    "two names in a declaration": ".global .align 4 .b8 a, data[6442450944];",
    "an attribute": ".global .attribute(.unified(1, 2)) .align 4 .b8 data[6442450944];",
    "a hexadecimal size": ".global .align 4 .b8 data[0x180000000];",
    "6,144 small variables": "\n".join(f".global .align 4 .b8 data{i}[1048576];" for i in range(6144)),
}


def _fat_binary(size: int) -> bytes:
    """One that says that it is `size` bytes long, with a compressed image of a form that nobody knows."""
    head = (0xBA55ED50).to_bytes(4, "little") + b"\1\0\x10\0" + size.to_bytes(8, "little")
    return head + b"\2\0\1\1\x40\0\0\0" + (size - 64).to_bytes(8, "little") + b"\xff" * 80


def an_image(image: bytes) -> Program:
    """As a module, and as a library in two contexts."""

    def program(slice_: Slice, look: Look) -> None:
        path = os.path.join(slice_.root, "image")
        with open(path, "wb") as file:
            file.write(image)
        process = slice_.start()
        attempt(process, f"loadfile m {path}")
        look()
        attempt(process, f"loadlibraryfile l {path}", "kernelof k l", "launchkernel k")
        look()
        attempt(process, "nocontext", f"loadlibraryfile n {path}", "kernelof j n", "primary 0")
        attempt(process, "launchkernel j", "launchkernel j", "dropkernels n", "dropkernels l", "wait")

    return program


TAKERS = (
    Taker(
        "primary context between two threads",
        "one thread retains the primary context while another releases it",
        primary_context_between_two_threads,
    ),
    Taker("a graph of a million nodes", "an allocation behind a million nodes", a_graph_of_a_million_nodes),
    Taker("a graph in many graphs", "an allocation fifteen graphs deep", a_graph_in_many_graphs),
    Taker(
        "a graph that uploads itself",
        "memory taken by the upload at instantiation",
        a_graph_that_uploads_itself,
    ),
    Taker(
        "local memory in other contexts",
        "kernel nodes with local memory, in contexts that are not current",
        local_memory_in_other_contexts("kernelin"),
        8 * GIB,
    ),
    Taker(
        "local memory in other contexts, any node",
        "kernel nodes with local memory, added by cuGraphAddNode",
        local_memory_in_other_contexts("anykernelin"),
        8 * GIB,
    ),
    Taker(
        "local memory of functions",
        "functions of modules in other contexts",
        local_memory_of_functions,
        8 * GIB,
    ),
    Taker(
        "a kernel got without a context",
        "a library with 6 GiB of variables is loaded by a launch",
        a_kernel_got_without_a_context("kernelof", "primary 0"),
    ),
    Taker(
        "a kernel got and launched without one",
        "a library with 6 GiB of variables is loaded by a launch without a current context",
        a_kernel_got_without_a_context("kernelof", "nocontext"),
    ),
    Taker(
        "kernels that were listed without a context",
        "a library with 6 GiB of variables is loaded by a launch of a kernel from cuLibraryEnumerateKernels",
        a_kernel_got_without_a_context("kernelsof", "primary 0"),
    ),
    *(
        Taker(
            f"PTX with {name}",
            f"a module in PTX declares 6 GiB of variables, with {name}",
            an_image(PTX.format(text).encode()),
        )
        for name, text in DECLARATIONS.items()
    ),
    Taker("a fat binary of an unknown form", "a compressed image", an_image(_fat_binary(6 * GIB))),
    Taker(
        "memory sent to another process",
        "exported blocks; the maker lets go of each when it is imported",
        sent_to_another(""),
        4 * GIB,
    ),
    Taker(
        "memory sent in a descriptor that stays open",
        "exported blocks; the importer keeps the descriptor",
        sent_to_another("kept"),
        4 * GIB,
    ),
    Taker("memory sent and never mapped", "imported blocks that nobody maps", sent_and_not_mapped),
    Taker("memory sent to many", "a block outlives the processes that had it first", sent_to_many, 4 * GIB),
    Taker("a copy of a descriptor", "memory lives on by dup(2) of its descriptor", a_copy_of_a_descriptor),
    Taker(
        "a descriptor whose file was replaced",
        "the number of an exported descriptor is given to another file",
        a_descriptor_of_another_contents,
    ),
)
