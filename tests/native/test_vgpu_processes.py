"""Processes that share a slice: they race, fork, exec, stop and die."""

from __future__ import annotations

import os
import signal
import struct

import pytest
from support import GIB, MIB
from support.locks import lock
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Process, Slice

from nvc.model.slices import layout


def test_a_race_grants_what_fits_and_no_more(vgpu: Slice) -> None:
    limit = 8 * CONTEXT + 2 * GIB
    vgpu.limit(limit, GIB)
    processes = [vgpu.start() for _ in range(8)]
    for round_ in range(10):
        for process in processes:
            process.send(f"alloc a {512 * MIB}")
        codes = [int(process.receive()[0]) for process in processes]
        assert sorted(codes) == [0] * 4 + [OUT_OF_MEMORY] * 4, round_
        assert vgpu.agree() == limit
        for process, code in zip(processes, codes):
            if code == 0:
                process.do("free a")
    assert vgpu.agree() == 8 * CONTEXT


def test_what_a_killed_process_had_is_free_at_once(vgpu: Slice) -> None:
    first, second = vgpu.start(), vgpu.start()
    first.do("alloc a 700m")
    assert second.code("alloc b 700m") == OUT_OF_MEMORY
    first.kill()
    second.do("alloc b 700m")
    assert vgpu.agree() == CONTEXT + 700 * MIB
    assert second.info() == (2 * GIB - CONTEXT - 700 * MIB, 2 * GIB)


def test_a_stopped_process_holds_up_nobody(vgpu: Slice) -> None:
    """It stopped between asking for a gibibyte and having it: only who needs just that waits, and not for ever."""
    other = vgpu.start()
    slot = layout.LEDGER_HEADER.size + 5 * layout.SLOT_HEADER.size
    fd = os.open(vgpu.path("nvc/ledger/ledger"), os.O_RDWR)
    lock(fd, 5)
    os.pwrite(fd, layout.AMOUNT.pack(1, GIB, GIB, 0), layout.AMOUNTS_OFFSET + 5 * layout.AMOUNT.size)
    os.pwrite(fd, layout.SLOT_HEADER.pack(12345, 1, 0, b"stopped"), slot)
    os.pwrite(fd, struct.pack("<I", 6), 20)
    other.do("alloc a 16m", "free a")
    assert other.code("alloc a 1000m") == OUT_OF_MEMORY
    os.close(fd)  # and is killed
    other.do("alloc a 1000m")
    assert vgpu.agree() == CONTEXT + 1000 * MIB


def test_fork_before_the_driver_starts(vgpu: Slice) -> None:
    process = vgpu.process()
    assert process.code("fork 1m") != 0  # no context in the child
    process.start().do("alloc a 64m")
    assert vgpu.agree() == CONTEXT + 64 * MIB


def test_fork_after_the_driver_started(vgpu: Slice) -> None:
    """The child gets the driver's own error, and its end frees nothing of its parent's."""
    process = vgpu.start().do("alloc a 64m")
    assert process.code("fork 1m") == 3  # not initialized
    assert vgpu.agree() == CONTEXT + 64 * MIB
    process.do("unlock", "alloc b 64m", "free a")
    assert vgpu.agree() == CONTEXT + 64 * MIB


def test_a_child_that_lives_on_keeps_the_account(vgpu: Slice) -> None:
    """It has the driver's descriptors too, so the memory is not free either."""
    process = vgpu.start().do("alloc a 64m", "orphan c")
    child = int(process.ask("show c")[0])
    process.kill()
    assert vgpu.used() == CONTEXT + 64 * MIB
    os.kill(child, signal.SIGKILL)
    vgpu.eventually(lambda: vgpu.used() == 0)
    vgpu.start().do("alloc a 1500m")


def test_exec_starts_afresh(vgpu: Slice) -> None:
    process = vgpu.start().do("alloc a 64m")
    process.send("exec")
    process.start()
    assert vgpu.agree() == CONTEXT


def test_a_program_that_closes_all_descriptors(vgpu: Slice) -> None:
    first = vgpu.start().do("alloc a 1000m", "closefrom")
    first.code("free b")  # any call of ours finds out, and enters anew
    first.info()
    first.code("alloc b 1m")
    assert vgpu.used() >= CONTEXT + 1000 * MIB
    second = vgpu.process().do("init")
    assert second.code("primary 0") == OUT_OF_MEMORY or second.code("alloc a 64m") == OUT_OF_MEMORY


def opened(vgpu: Slice, *allocations: str) -> tuple[Process, Process]:
    """Who has allocated, and who has opened `a` of that as `b`."""
    exporter, importer = vgpu.start(), vgpu.start()
    handle = os.path.join(vgpu.root, "handle")
    exporter.do(*allocations, f"ipcget a {handle}")
    importer.do(f"ipcopen b {handle}")
    return exporter, importer


def test_an_importer_bears_what_its_exporter_left(vgpu: Slice) -> None:
    exporter, importer = opened(vgpu, "alloc a 100m")
    exporter.kill()
    # Somebody who looks, moves it.
    vgpu.eventually(lambda: importer.info()[0] == 2 * GIB - CONTEXT - 100 * MIB)
    assert vgpu.used() == CONTEXT + 100 * MIB
    importer.do("ipcclose b")
    assert vgpu.agree() == CONTEXT


def test_an_exporter_that_frees_first(vgpu: Slice) -> None:
    exporter, importer = opened(vgpu, "alloc a 100m")
    exporter.do("free a")
    assert vgpu.agree() == 2 * CONTEXT + 100 * MIB
    importer.kill()
    vgpu.eventually(lambda: exporter.info()[0] == 2 * GIB - CONTEXT)
    assert vgpu.agree() == CONTEXT


@pytest.mark.parametrize("killed", [False, True])
def test_a_small_block_that_its_exporter_gives_up(vgpu: Slice, killed: bool) -> None:
    """Who has it open has its chunk of 2 MiB, and bears that."""
    exporter, importer = opened(vgpu, "alloc a 100k")
    assert vgpu.agree() == 2 * CONTEXT + 2 * MIB
    if killed:
        exporter.kill()
        vgpu.eventually(lambda: importer.info()[0] == 2 * GIB - CONTEXT - 2 * MIB)
    else:
        exporter.do("free a")
    contexts = 1 if killed else 2
    assert vgpu.agree() == contexts * CONTEXT + 2 * MIB
    importer.do("ipcclose b")
    assert vgpu.agree() == contexts * CONTEXT


def test_a_small_block_beside_one_that_its_exporter_keeps(vgpu: Slice) -> None:
    """Both bear the chunk, which is 2 MiB too much, until the exporter has nothing more in it."""
    exporter, importer = opened(vgpu, "alloc a 100k", "alloc z 100k")
    exporter.do("free a")
    assert vgpu.taken() == 2 * CONTEXT + 2 * MIB
    assert vgpu.used() == 2 * CONTEXT + 4 * MIB
    exporter.do("free z")
    assert vgpu.agree() == 2 * CONTEXT + 2 * MIB
    importer.do("ipcclose b")
    assert vgpu.agree() == 2 * CONTEXT


def test_descriptors_of_memory_in_another_process(vgpu: Slice) -> None:
    exporter, importer = vgpu.start(), vgpu.start()
    exporter.do("create v 64m 0 1 1", "export v f")
    fd = exporter.ask("show f")[0]
    importer.do(f"importfrom w {exporter.pid} {fd}", "reserve r 64m", "map r w 64m 0")
    assert vgpu.agree() == 2 * CONTEXT + 64 * MIB
    exporter.do("close f", "release v")
    assert vgpu.agree() == 2 * CONTEXT + 64 * MIB  # the importer has it
    importer.do("release w", "unmap r 64m")
    assert vgpu.agree() == 2 * CONTEXT


def test_limits_change_under_a_running_process(vgpu: Slice) -> None:
    process = vgpu.start().do("alloc a 1g")
    vgpu.limit(GIB, GIB)
    assert process.code("alloc b 2m") == OUT_OF_MEMORY
    assert process.info() == (0, GIB)
    vgpu.limit(4 * GIB, GIB)
    process.do("alloc b 2g")
    assert process.info() == (4 * GIB - CONTEXT - 3 * GIB, 4 * GIB)
    vgpu.limit(4 * GIB, GIB, correction=100 * MIB)  # what the host sees beyond the ledger
    assert process.info()[0] == 4 * GIB - CONTEXT - 3 * GIB - 100 * MIB
    process.do("free a", "free b")
