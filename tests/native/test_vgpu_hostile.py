"""A quota that cannot be trusted denies memory and says so; a tenant that spoils its ledger hurts nobody else."""

from __future__ import annotations

import os
import random
import struct

import pytest
from support import GIB, MIB, run
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Process, Slice

from nvc.model.slices import layout


def denied(vgpu: Slice) -> Process:
    """A process that gets no memory, and is told why once, in the log alone."""
    process = vgpu.process().do("init")
    for _ in range(3):
        assert process.code("primary 0") == OUT_OF_MEMORY
        assert process.code("create v 64m 0") == OUT_OF_MEMORY
    said = [line for line in vgpu.said() if "allocations are denied" in line]
    assert 1 <= len(said) <= 2, vgpu.said()
    assert all(str(process.pid) in line for line in said)
    return process


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "version", "magic", "odd", "count"])
def test_a_bad_quota(vgpu: Slice, damage: str) -> None:
    path = vgpu.path("nvc/quota")
    if damage == "missing":
        os.unlink(path)
    else:
        changes = {"version": (8, layout.VERSION + 1), "magic": (0, 0), "odd": (16, 7), "count": (24, 65)}
        change = changes.get(damage)
        with open(path, "r+b") as file:
            if change:
                file.seek(change[0])
                file.write(struct.pack("<I", change[1]))
            else:
                file.truncate(100 if damage == "short" else 0)
    denied(vgpu)
    assert vgpu.taken() == 0


@pytest.mark.parametrize("damage", ["missing", "short", "version"])
def test_a_bad_ledger(vgpu: Slice, damage: str) -> None:
    path = vgpu.path("nvc/ledger/ledger")
    if damage == "missing":
        os.unlink(path)
    else:
        with open(path, "r+b") as file:
            if damage == "short":
                file.truncate(4096)
            else:
                file.write(b"x" * 16)
    denied(vgpu)


def test_a_quota_that_comes_back(vgpu: Slice) -> None:
    path = vgpu.path("nvc/quota")
    os.rename(path, path + ".away")
    process = denied(vgpu)
    os.rename(path + ".away", path)
    process.do("primary 0", "alloc a 64m")
    assert vgpu.agree() == CONTEXT + 64 * MIB


def test_a_device_that_is_not_listed(vgpu: Slice) -> None:
    vgpu.limit(GIB)
    process = vgpu.start(0).do("alloc a 8m")
    assert process.code("primary 1") == OUT_OF_MEMORY
    assert process.code("create v 64m 1") == OUT_OF_MEMORY
    assert "CUDA device 1 is not in the quota" in vgpu.said()[0]


def test_silence_unless_asked(vgpu: Slice) -> None:
    os.unlink(vgpu.path("nvc/quota"))
    for log in ("", "relative/path", vgpu.log):
        done = run(vgpu.tool, env=vgpu.environment(NVC_VGPU_LOG=log), stdin=None, input="init\nprimary 0\n")
        assert done.stdout.split()[-1] == str(OUT_OF_MEMORY) and done.stderr == ""
        assert bool(vgpu.said()) is (log == vgpu.log), log


def test_a_ledger_cut_short_while_in_use(vgpu: Slice) -> None:
    process = vgpu.start().do("alloc a 64m")
    os.truncate(vgpu.path("nvc/ledger/ledger"), 100)
    assert process.code("alloc b 64m") == OUT_OF_MEMORY
    process.info()
    process.do("free a")
    other = vgpu.process().do("init")
    assert other.code("primary 0") == OUT_OF_MEMORY


def test_a_ledger_that_is_cut_and_mended_all_the_time(vgpu: Slice) -> None:
    """At no moment does that end a process."""
    path = vgpu.path("nvc/ledger/ledger")
    with open(path, "rb") as file:
        head = file.read(64)
    processes = [vgpu.start() for _ in range(2)]
    for process in processes:
        process.send("threads 4 5m 1000")
    fd = os.open(path, os.O_RDWR)
    for _ in range(2000):
        os.ftruncate(fd, 0)
        os.ftruncate(fd, layout.LEDGER_SIZE)
        os.pwrite(fd, head, 0)
    os.close(fd)
    for process in processes:
        assert process.receive() == ["0"]
        process.code("alloc a 16m")


def test_what_the_host_denies(vgpu: Slice) -> None:
    process = vgpu.start().do("alloc a 64m")
    vgpu.limit(2 * GIB, 2 * GIB, flags=layout.DENIED)
    assert process.code("alloc b 64m") == OUT_OF_MEMORY
    process.do("free a")
    assert vgpu.process().do("init").code("primary 0") == OUT_OF_MEMORY
    vgpu.limit(2 * GIB, 2 * GIB)
    process.do("alloc b 64m")
    assert vgpu.agree() == CONTEXT + 64 * MIB


def test_a_ledger_that_grows(vgpu: Slice) -> None:
    process = vgpu.start()
    os.truncate(vgpu.path("nvc/ledger/ledger"), 1 << 30)
    process.do("alloc a 64m", "free a")
    assert process.code("alloc a 1600m") == OUT_OF_MEMORY


@pytest.mark.parametrize("seed", range(8))
def test_a_ledger_that_is_scribbled_over(vgpu: Slice, seed: int) -> None:
    """The tenant's numbers may be wrong after that; its processes go on."""
    draw = random.Random(seed)
    processes = [vgpu.start() for _ in range(3)]
    with open(vgpu.path("nvc/ledger/ledger"), "r+b") as file:
        for _ in range(30):
            for _ in range(50):
                file.seek(draw.randrange(layout.LEDGER_SIZE - 64))
                file.write(draw.randbytes(draw.randrange(1, 64)))
            file.seek(24)  # high water, transfers, shares
            file.write(draw.randbytes(24))
            file.flush()
            for process in processes:
                process.code("alloc a 16m")
                process.code("free a")
                process.code("alloc b 1k")
                process.code("free b")
                process.info()
    for process in processes:
        process.end()
        assert process.process.returncode == 0


def test_all_of_it_is_ones(vgpu: Slice) -> None:
    process = vgpu.start()
    with open(vgpu.path("nvc/ledger/ledger"), "r+b") as file:
        file.seek(64)
        file.write(b"\xff" * (layout.LEDGER_SIZE - 64))
    assert process.code("alloc a 16m") == OUT_OF_MEMORY
    assert process.info() == (0, 2 * GIB)


def test_no_limit_at_all(vgpu: Slice) -> None:
    vgpu.limit(layout.NO_LIMIT, 200 * GIB)
    process = vgpu.start().do("alloc a 10g")
    free, total = process.info()
    assert total == (81559 - 551) * MIB and free == total - CONTEXT - 10 * GIB
    assert int(process.ask("total 1")[0]) == total
    assert vgpu.agree() == CONTEXT + 10 * GIB
    process.start(1).do("alloc b 10g")
    assert process.info() == (total - CONTEXT - 10 * GIB, total)
