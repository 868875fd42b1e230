"""What few programs do: threads that are cancelled, captures meanwhile, streams that are gone, views."""

from __future__ import annotations

import os

import pytest
from support import GIB, MIB, adversary_memory
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Slice

LEFT = 2 * GIB - CONTEXT  # of the slice, beside a context
THREADS = 132 * 2048  # that can be resident on the simulated GPU


def test_a_thread_that_is_cancelled_leaves_no_lock(vgpu: Slice) -> None:
    process = vgpu.start()
    for _ in range(3):
        process.do("cancel", "alloc a 64m", "free a")
    assert vgpu.agree() == CONTEXT


def test_a_capture_survives_what_the_shim_asks(vgpu: Slice) -> None:
    """Of the strictest mode, while memory waits for another stream to free it."""
    process = vgpu.start().do("alloc a 100m", "freeasync a", "stream s", "capture 0")
    process.info()
    assert process.code("async b 64m") == 0
    process.do("freeasync b", "captured g", "instance i g", "run i", "sync")
    process.do("dropinstance i", "dropgraph g", "trimgraphs 0")
    assert vgpu.agree() == CONTEXT


def test_a_stream_that_is_gone_before_the_memory(vgpu: Slice) -> None:
    process = vgpu.start().do("stream s", "alloc a 100m", "freeasync a", "dropstream", "defaultstream")
    process.do("wait")
    process.info()
    assert vgpu.agree() == CONTEXT


@pytest.mark.parametrize("how", ["1", "2", "any"])
def test_a_node_gets_a_hungrier_kernel(vgpu: Slice, how: str) -> None:
    vgpu.limit(8 * GIB, GIB)
    process = vgpu.start().do("module m 4", "module n 16k", "graph g", "kernelnode k g m")
    process.do(f"setnode k n {how}", "instance i g", "run i", "wait")
    assert vgpu.used() >= vgpu.taken()
    assert vgpu.used() == CONTEXT + THREADS * 15 * 1024


@pytest.mark.parametrize("how", ["1", "2", "any"])
def test_an_instance_gets_a_hungrier_kernel(vgpu: Slice, how: str) -> None:
    process = vgpu.start().do("module m 4", "module n 16k", "graph g", "kernelnode k g m", "instance i g")
    assert process.code(f"setinstance i k n {how}") == OUT_OF_MEMORY
    process.do("run i", "wait")
    assert vgpu.agree() == CONTEXT


def test_a_graph_with_memory_of_two_devices(vgpu: Slice) -> None:
    process = vgpu.start().do("graph g", "node g 100m 0", "node g 200m 1", "instance i g", "run i", "sync")
    assert (vgpu.agree(0), vgpu.agree(1)) == (CONTEXT + 128 * MIB, 224 * MIB)
    process.do("dropinstance i", "dropgraph g", "trimgraphs 0", "trimgraphs 1")
    assert (vgpu.agree(0), vgpu.agree(1)) == (CONTEXT, 0)
    process.do("graph g", "node g 100m 0", "node g 2100m 1", "instance i g")
    assert process.code("run i") == OUT_OF_MEMORY
    assert (vgpu.agree(0), vgpu.agree(1)) == (CONTEXT, 0)


def test_a_graph_with_memory_of_a_device_that_is_not_listed(vgpu: Slice) -> None:
    vgpu.limit(2 * GIB)
    process = vgpu.start().do("graph g", "node g 100m 1", "instance i g")
    assert process.code("run i") == OUT_OF_MEMORY
    assert vgpu.taken(1) == 0


def test_kernels_of_a_context_that_is_gone_are_not_remembered(vgpu: Slice) -> None:
    """The next context's kernels have their handles."""
    vgpu.limit(16 * GIB, GIB)
    process = vgpu.start()
    for _ in range(4):
        process.do("context c 0", "module m 4", "launch m", "wait", "dropcontext c")
        process.do("context c 0", "module m 16k", "launch m", "wait")
        assert vgpu.agree() == 2 * CONTEXT + THREADS * 15 * 1024
        process.do("dropcontext c")
    assert vgpu.agree() == CONTEXT


def ruined(kind: str) -> bytes:
    """The beginning of a module's file that promises more than there is."""
    if kind == "elf":
        header = bytearray(b"\x7fELF\x02\x01\x01".ljust(64, b"\0"))
        header[40:48] = (1 << 50).to_bytes(8, "little")
        header[58:62] = (64).to_bytes(2, "little") + (500).to_bytes(2, "little")
        return bytes(header) + b"\0" * 16
    size = {"fat": 1 << 30, "fat beyond": 1 << 63}[kind]
    fat = (0xBA55ED50).to_bytes(4, "little") + b"\1\0\x10\0" + size.to_bytes(8, "little")
    return fat + b"\1\0\0\0\x40\0\0\0" + (1 << 20).to_bytes(8, "little") + b"\0" * 80


@pytest.mark.parametrize("kind", ["elf", "fat", "fat beyond"])
def test_a_ruined_file_is_the_drivers_to_judge(vgpu: Slice, kind: str) -> None:
    path = os.path.join(vgpu.root, "module")
    with open(path, "wb") as file:
        file.write(ruined(kind))
    process = vgpu.start()
    if process.code(f"loadfile m {path}") == 0:
        process.do("unload m")
    if process.code(f"loadlibraryfile l {path}") == 0:
        process.do("dropkernels l")
    assert vgpu.agree() == CONTEXT


def test_green_contexts_are_parts_of_the_primary_one(vgpu: Slice) -> None:
    process = vgpu.process().do("init", "green g 0")
    assert vgpu.agree() == CONTEXT
    process.do("green h 0", "usegreen g", "alloc a 100m")
    assert vgpu.agree() == CONTEXT + 100 * MIB
    assert process.code("alloc b 1500m") == OUT_OF_MEMORY
    process.do("primary 0", "dropgreen g", "dropgreen h")
    assert vgpu.agree() == CONTEXT + 100 * MIB
    process.do("leave 0")
    assert vgpu.agree() == 0


def test_a_primary_context_that_ends_under_a_green_one(vgpu: Slice) -> None:
    process = vgpu.process().do("init", "green g 0", "usegreen g", "alloc a 100m", "reset 0")
    assert vgpu.agree() == 0
    process.do("primary 0")
    assert vgpu.agree() == CONTEXT


def test_a_green_context_that_does_not_fit(vgpu: Slice) -> None:
    vgpu.limit(CONTEXT - 1, GIB)
    process = vgpu.process().do("init")
    assert process.code("green g 0") == OUT_OF_MEMORY
    assert vgpu.agree() == 0


def test_processes_that_come_and_go_leave_no_slots(vgpu: Slice) -> None:
    """All slots that were ever used are added up with each allocation, so the lowest are used again."""
    for _ in range(12):
        vgpu.start().do("alloc a 10m").kill()
    with open(vgpu.path("nvc/ledger/ledger"), "rb") as file:
        file.seek(20)
        assert int.from_bytes(file.read(4), "little") == 1


def test_a_library_that_was_taken_back_keeps_its_handle(vgpu: Slice) -> None:
    """The driver gives a handle again once it is free, and the program has still to unload its library."""
    path = os.path.join(vgpu.root, "image")
    with open(path, "w", encoding="ascii") as file:
        file.write(adversary_memory.PTX.format(".global .align 4 .b8 data[6442450944];"))
    process = vgpu.start().do("nocontext", f"loadlibraryfile l {path}", "kernelof k l", "primary 0")
    assert process.code("launchkernel k") == OUT_OF_MEMORY
    process.do("library n 0 0", "kernelof j n", "launchkernel j", "dropkernels n")
    process.do(f"loadlibraryfile n {path}", "library o 0 0", "kernelof j o", "launchkernel j", "wait")
    process.do("dropkernels n", "dropkernels l", "dropkernels o")
    assert vgpu.agree() == CONTEXT
