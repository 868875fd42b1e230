"""More programs of the catalogue that try to have more memory: each family of calls, and how its memory ends."""

from __future__ import annotations

import os

from . import GIB, MIB
from .adversary import Look, Program, Taker, attempt
from .vgpushim import OUT_OF_MEMORY, Process, Slice

DENIED = 2  # a bit of the quota's flags


def fill(process: Process, command: str, look: Look, most: int = 40) -> int:
    """How often the command is granted until it is refused; `{}` in it is a name for each time."""
    for count in range(most):
        if process.code(command.format(chr(97 + count % 26))):
            return count
        look()
    return most


def until_refused(command: str, size: int, *before: str) -> Program:
    """One call after the other, and at last smaller pieces."""

    def program(slice_: Slice, look: Look) -> None:
        process = slice_.start().do(*before)
        count = fill(process, command, look)
        assert GIB <= count * size <= look.taker.limit, count
        fill(process, "alloc {} 16m", look)

    return program


def while_busy(process: Process, look: Look) -> None:
    """Look until the process has answered its last command."""
    while not process.time.wait([process.process.stdout], 0):
        look(moving=True)
    process.receive()


def many_threads(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    process.send("threads 16 500m 300")
    while_busy(process, look)


def many_processes(slice_: Slice, look: Look) -> None:
    processes = [slice_.start() for _ in range(2)]
    for process in processes:
        process.send("churn 800m 300")
    for process in processes:
        while_busy(process, look)


def a_child_of_fork(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("alloc a 1g")
    for _ in range(3):
        assert process.code("fork 1g") != 0
        look()


def the_next_program(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    for _ in range(3):
        process.do("alloc a 1g")
        look()
        process.send("exec")
        process.do("init", "primary 0")
        look()


def killed(slice_: Slice, look: Look) -> None:
    for _ in range(4):
        process = slice_.start().do("alloc a 1400m")
        look()
        process.kill()
    slice_.start().do("alloc a 1400m")


def opened_by_a_handle(slice_: Slice, look: Look) -> None:
    """The memory lives for as long as somebody has it open."""
    path = os.path.join(slice_.root, "handle")
    maker, taker = slice_.start(), slice_.start()
    for name in "abcdef":
        if maker.code(f"alloc {name} 400m"):
            break
        maker.do(f"ipcget {name} {path}")
        attempt(taker, f"ipcopen {name} {path}")
        maker.do(f"free {name}")
        look()
    fill(maker, "alloc {} 128m", look)
    maker.kill()
    fill(slice_.start(), "alloc {} 128m", look)


def opened_elsewhere(count: int, size: str, left: str) -> Program:
    """Blocks of which the maker lets go once another process has them open."""

    def program(slice_: Slice, look: Look) -> None:
        path = os.path.join(slice_.root, "handle")
        maker, taker = slice_.start(), slice_.start()
        for _ in range(count):
            if maker.code(f"alloc a {size}"):
                break
            if maker.code(f"ipcget a {path}") == 0:
                attempt(taker, f"ipcopen b {path}")
            maker.do("free a")
        look()
        fill(maker, f"alloc {{}} {left}", look)

    return program


def a_pool_in_two_processes(slice_: Slice, look: Look) -> None:
    path = os.path.join(slice_.root, "pointer")
    maker, taker = slice_.start(), slice_.start()
    for name in "abc":
        if maker.code(f"sharedpool {name} 0") or maker.code(f"frompool {name} 300m {name}"):
            break
        maker.do("sync", f"exportpool {name} f", f"exportpointer {name} {path}")
        (fd,) = maker.ask("show f")
        attempt(taker, f"importpool {name} {maker.pid} {fd}", f"importpointer {name} {name} {path}")
        attempt(maker, f"freeasync {name}", f"droppool {name}", "sync")
        look()
    fill(maker, "alloc {} 128m", look)


def a_pool_that_keeps(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("stream s", "pool p 0", "keep p", "frompool a 1g p", "freeasync a", "sync")
    look()
    fill(process, "alloc {} 256m", look)


def pools_that_are_dropped(slice_: Slice, look: Look) -> None:
    """Their memory lives until it is freed."""
    process = slice_.start().do("stream s")
    for name in "abcdef":
        process.do(f"pool {name} 0")
        attempt(process, f"frompool {name} 400m {name}", f"droppool {name}")
        look()
    attempt(process, "sync")


def a_handle_that_is_retained(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    for name, other in zip("abcdef", "ghijkl"):
        if process.code(f"create {name} 256m 0"):
            break
        process.do(f"reserve {other} 256m", f"map {other} {name} 256m 0", f"retain r {other}")
        process.do(f"release {name}", "release r")
        look()
    fill(process, "alloc {} 128m", look)


def imported_twice(slice_: Slice, look: Look) -> None:
    maker, taker = slice_.start(), slice_.start()
    maker.do("create v 256m 0 1 1", "export v f")
    (fd,) = maker.ask("show f")
    taker.do(f"importfrom w {maker.pid} {fd}", f"importfrom x {maker.pid} {fd}", "release w")
    maker.do("release v", "close f")
    look()
    fill(maker, "create {} 128m 0", look)


def contexts_until_refused(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    assert 1 <= fill(process, "context {} 0", look, 12) < 12


def green_contexts(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    fill(process, "green {} 0", look, 12)
    attempt(process, "usegreen a")
    fill(process, "alloc {} 256m", look)


def contexts_with_memory(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    for _ in range(4):
        process.do("context c 0", "current c", "alloc a 512m")
        look()
        process.do("dropcontext c", "primary 0")
    fill(process, "alloc {} 256m", look)


def a_reset_context(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    for _ in range(4):
        process.do("alloc a 1g")
        look()
        process.do("reset 0", "primary 0")
    fill(process, "alloc {} 256m", look)


def a_limit_of_the_context(*words: str) -> Program:
    def program(slice_: Slice, look: Look) -> None:
        process = slice_.start().do("module m")
        attempt(process, *words, "launch m", "wait")
        look()
        fill(process, "alloc {} 256m", look)

    return program


def modules_until_refused(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    assert 1 <= fill(process, "module {} 4 500m", look, 8) < 8


def modules_that_are_unloaded(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    for _ in range(4):
        process.do("module m 4 1g", "launch m", "unload m")
        look()
    fill(process, "alloc {} 256m", look)


def instances_of_a_graph(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("stream s", "graph g", "node g 400m")
    for name in "abcdefgh":
        attempt(process, f"instance {name} g", f"run {name}")
        look()
    attempt(process, "sync", "trimgraphs 0")
    fill(process, "alloc {} 256m", look)


def a_graph_for_another_device(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("stream s", "graph g", "node g 6g 1")
    attempt(process, "instance i g", "run i", "sync")
    look()


def a_captured_allocation(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("stream s", "capture")
    attempt(
        process, *(f"async {name} 800m" for name in "abcd"), "captured g", "instance i g", "run i", "sync"
    )
    look()


def a_limit_that_is_lowered(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("alloc a 1400m")
    slice_.limit(*[GIB] * len(slice_.uuids), context_overhead=slice_.context)
    assert process.code("alloc b 2m") == OUT_OF_MEMORY
    process.do("free a")
    assert GIB - slice_.context - 256 * MIB <= 64 * MIB * fill(process, "alloc {} 64m", look) <= GIB


def denied_while_it_runs(slice_: Slice, look: Look) -> None:
    process = slice_.start().do("alloc a 64m")
    slice_.limit(*[2 * GIB] * len(slice_.uuids), context_overhead=slice_.context, flags=DENIED)
    assert (
        attempt(process, "alloc b 2m", "async c 2m", "create d 2m 0", "context e 0", "managed f 2m")
        == [2] * 5
    )
    slice_.limit(*[2 * GIB] * len(slice_.uuids), context_overhead=slice_.context)
    process.do("alloc b 2m")


def wrong_frees(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    for _ in range(3):
        process.do("alloc a 1g")
        attempt(process, "freeat a 2m", "free a", "free a")
    fill(process, "alloc {} 256m", look)


def refused_and_asked_again(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    for _ in range(50):
        assert process.code("alloc z 3g") == process.code("create y 4g 0") == OUT_OF_MEMORY
    look.counted(slice_.context)
    fill(process, "alloc {} 256m", look)


def another_subsystem(slice_: Slice, look: Look) -> None:
    process = slice_.start()
    for _ in range(4):
        process.do("alloc a 1g")
        attempt(process, "dmabuf a")
        process.do("free a")
        look()
    fill(process, "alloc {} 256m", look)


def without(*commands: str) -> Program:
    """Something that the shim needs is taken from it, and memory asked for."""

    def program(slice_: Slice, look: Look) -> None:
        process = slice_.start().do("alloc a 1g")
        attempt(process, *commands)
        fill(process, "alloc {} 256m", look)
        fill(process, "create {} 128m 0", look)

    return program


def the_ledger(change: str) -> Program:
    """Its file is changed, and memory asked for by this process and by another."""

    def program(slice_: Slice, look: Look) -> None:
        path = slice_.path("nvc/ledger/ledger")
        process = slice_.start().do("alloc a 1g")
        if change == "cut":
            os.truncate(path, 0)
        elif change == "removed":
            os.unlink(path)
        else:
            with open(path, "r+b") as file:
                file.write(bytes(os.path.getsize(path)))
        fill(process, "alloc {} 256m", look)
        other = slice_.process()
        if attempt(other, "init", "primary 0") == [0, 0]:
            fill(other, "alloc {} 256m", look)

    return program


TAKERS = (
    Taker("cuMemAlloc until it is refused", "256 MiB at a time", until_refused("alloc {} 256m", 256 * MIB)),
    Taker(
        "cuMemAllocPitch until it is refused",
        "rows of 65,537 bytes",
        until_refused("pitch {} 65537 4000", 256 * MIB),
    ),
    Taker(
        "cuMemAllocManaged until it is refused",
        "256 MiB at a time",
        until_refused("managed {} 256m", 256 * MIB),
    ),
    Taker("cuMemCreate until it is refused", "256 MiB at a time", until_refused("create {} 256m 0", 256 * MIB)),
    Taker(
        "cuMemAllocAsync until it is refused",
        "256 MiB at a time",
        until_refused("async {} 256m", 256 * MIB, "stream s"),
    ),
    Taker(
        "cuMemAllocFromPoolAsync until it is refused",
        "256 MiB at a time",
        until_refused("frompool {} 256m p", 256 * MIB, "stream s", "pool p 0"),
    ),
    Taker("cuArrayCreate until it is refused", "4,096 by 4,096", until_refused("array {} 4096 4096", 256 * MIB)),
    Taker(
        "cuMipmappedArrayCreate until it is refused",
        "4,096 by 4,096, all levels",
        until_refused("mipmap {} 4096 4096 0", 256 * MIB),
    ),
    Taker("many threads", "16 threads allocate at once", many_threads),
    Taker("many processes", "two processes allocate at once", many_processes),
    Taker("a child of fork", "the child asks for memory with what the parent had", a_child_of_fork),
    Taker("the next program", "execve with memory in hand", the_next_program),
    Taker("killed", "processes are killed with memory in hand", killed),
    Taker("opened by a handle", "the maker frees what another has open by an IPC handle", opened_by_a_handle),
    Taker(
        "more handles than the table has",
        "1,100 IPC handles are opened, and their memory freed by the maker",
        opened_elsewhere(1100, "2m", "256m"),
        4 * GIB,
    ),
    Taker("a pool in two processes", "the maker drops pools that another has imported", a_pool_in_two_processes),
    Taker("a pool that keeps", "a pool keeps what was freed to it", a_pool_that_keeps),
    Taker("pools that are dropped", "memory outlives its pool", pools_that_are_dropped),
    Taker("a handle that is retained", "memory lives by its mapping alone", a_handle_that_is_retained),
    Taker("imported twice", "a block is imported twice and released once", imported_twice),
    Taker("contexts until refused", "contexts, one after another", contexts_until_refused, 4 * GIB),
    Taker("green contexts", "twelve green contexts, and memory in one", green_contexts),
    Taker("contexts with memory", "a context is destroyed with memory in it", contexts_with_memory),
    Taker("a reset context", "the primary context is reset with memory in it", a_reset_context),
    Taker("the stack's limit", "64 KiB a thread by cuCtxSetLimit", a_limit_of_the_context("limit 0 65536")),
    Taker("the limit of printf", "4 GiB by cuCtxSetLimit", a_limit_of_the_context("limit 1 4g")),
    Taker("the limit of malloc", "4 GiB by cuCtxSetLimit", a_limit_of_the_context("limit 2 4g")),
    Taker(
        "limits of nested launches",
        "their depth and number by cuCtxSetLimit",
        a_limit_of_the_context("limit 3 24", "limit 4 100000000"),
    ),
    Taker("modules until refused", "modules with 500 MiB of variables", modules_until_refused),
    Taker("modules that are unloaded", "a module of 1 GiB, again and again", modules_that_are_unloaded),
    Taker("instances of a graph", "eight instances of a graph that allocates", instances_of_a_graph),
    Taker("a graph for another device", "a graph allocates elsewhere", a_graph_for_another_device, gpu=False),
    Taker("a captured allocation", "allocations that a stream captured", a_captured_allocation),
    Taker("a limit that is lowered", "the limit falls below what is in use", a_limit_that_is_lowered),
    Taker("denied while it runs", "five calls while the host denies memory", denied_while_it_runs),
    Taker("wrong frees", "memory is freed in its middle, and twice", wrong_frees),
    Taker("refused and asked again", "a hundred refusals", refused_and_asked_again),
    Taker("another subsystem", "a DMA buffer keeps memory that is freed", another_subsystem),
    Taker("no descriptors", "all descriptors are closed", without("closefrom", "rlimit 7 3"), gpu=False),
    Taker("no address space", "RLIMIT_AS is 1 MiB", without("rlimit 9 1048576"), gpu=False),
    Taker("the ledger is cut short", "truncate(2)", the_ledger("cut"), forged=True),
    Taker("the ledger is removed", "unlink(2)", the_ledger("removed"), forged=True),
    Taker("the ledger is zeroed", "write(2)", the_ledger("zeroed"), forged=True),
)
