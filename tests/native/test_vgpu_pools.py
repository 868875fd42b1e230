"""Pools by every way that a program can get one, also one of another process."""

from __future__ import annotations

import os

from support import GIB, MIB
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Process, Slice

INVALID = 1
LEFT = 2 * GIB - CONTEXT  # of the slice, beside a context


def test_the_default_pool_by_its_own_name(vgpu: Slice) -> None:
    process = vgpu.start().do("defaultpool p 0")
    assert process.code("frompool a 1800m p") == OUT_OF_MEMORY
    process.do("frompool a 500m p")
    assert vgpu.agree() == CONTEXT + 512 * MIB
    assert process.code("frompool b 1g p") == OUT_OF_MEMORY
    process.do("freeasync a", "sync")
    assert vgpu.agree() == CONTEXT


def test_a_full_pool_in_pieces(vgpu: Slice) -> None:
    """The driver makes it larger, which is undone: nobody gets that memory's address."""
    process = vgpu.start().do("stream s", "pool p 0", "keep p")
    for name in "abcd":
        process.do(f"frompool {name} 300m p")
    for name, small in zip("abcd", "efgh"):
        process.do(f"freeasync {name}", "sync", f"frompool {small} 160m p")
    full = vgpu.agree()
    assert full == CONTEXT + 4 * 320 * MIB
    vgpu.limit(*[full + 64 * MIB] * len(vgpu.uuids))
    assert process.code("frompool z 200m p") == OUT_OF_MEMORY
    assert process.ask("show z") == ["0"]
    assert vgpu.agree() == full
    process.do("frompool y 120m p", "freeasync y", "sync", "frompool x 1m p", "frompool w 20m p")
    assert vgpu.agree() == full


def test_a_pool_of_a_device_that_is_not_listed(vgpu: Slice) -> None:
    vgpu.limit(2 * GIB)
    process = vgpu.start()
    assert process.code("pool p 1") == OUT_OF_MEMORY
    process.do("defaultpool q 1")
    assert process.code("frompool a 64m q") == OUT_OF_MEMORY
    assert vgpu.taken(1) == 0


def test_a_pool_of_another_device(vgpu: Slice) -> None:
    process = vgpu.start().do("pool p 1", "frompool a 100m p")
    assert (vgpu.agree(0), vgpu.agree(1)) == (CONTEXT, 128 * MIB)
    assert process.code("frompool b 2g p") == OUT_OF_MEMORY
    process.do("freeasync a", "sync", "droppool p")
    assert (vgpu.agree(0), vgpu.agree(1)) == (CONTEXT, 0)


def test_a_pool_that_is_destroyed_before_its_memory_is_free(vgpu: Slice) -> None:
    process = vgpu.start()
    for _ in range(5):
        process.do("pool p 0", "keep p", "frompool a 600m p", "frompool b 10m p", "droppool p")
        assert process.code("droppool p") == INVALID
        assert vgpu.agree() == CONTEXT + 640 * MIB
        process.do("freeasync a", "sync")
        assert vgpu.used() >= vgpu.taken()
        process.do("freeasync b", "sync")
        assert vgpu.agree() == CONTEXT


def test_the_current_pool_is_destroyed(vgpu: Slice) -> None:
    process = vgpu.start().do("pool p 0", "usepool 0 p", "async a 100m", "droppool p", "async b 100m")
    process.do("freeasync a", "sync")
    assert vgpu.agree() == CONTEXT + 128 * MIB  # of the default pool, which is the current one again
    process.do("freeasync b", "sync")
    assert vgpu.agree() == CONTEXT


def test_the_default_pool_cannot_be_destroyed(vgpu: Slice) -> None:
    process = vgpu.start().do("async a 100m", "defaultpool p 0")
    assert process.code("droppool p") == INVALID
    process.do("async b 10m", "freeasync a", "freeasync b", "sync")
    assert vgpu.agree() == CONTEXT


def test_memory_of_a_pool_that_is_freed_without_a_stream(vgpu: Slice) -> None:
    """The books of others are right before this process asks for anything again."""
    process = vgpu.start().do("async a 1g", "sync", "free a", "wait")
    assert vgpu.agree() == CONTEXT
    other = vgpu.process().do("init")
    other.do("primary 0", f"alloc a {LEFT - CONTEXT}")
    process.info()


def shared(vgpu: Slice) -> tuple[Process, Process, str]:
    """Who has made 500 MiB in a pool, who has imported both, and the file by which it was."""
    exporter, importer = vgpu.start(), vgpu.start()
    data = os.path.join(vgpu.root, "data")
    exporter.do("sharedpool p 0", "frompool a 500m p", "exportpool p f", f"exportpointer a {data}")
    (fd,) = exporter.ask("show f")
    importer.do(f"importpool q {exporter.pid} {fd}", f"importpointer b q {data}")
    return exporter, importer, data


def test_memory_of_a_pool_in_two_processes(vgpu: Slice) -> None:
    exporter, importer, data = shared(vgpu)
    before = vgpu.agree()
    assert before == 2 * CONTEXT + 512 * MIB
    assert importer.code("frompool c 10m q") == INVALID
    assert vgpu.agree() == before
    importer.do("free b", f"importpointer b q {data}", "freeasync b", "sync", "droppool q")
    assert vgpu.agree() == before
    exporter.do("freeasync a", "sync", "droppool p")
    assert vgpu.agree() == 2 * CONTEXT


def test_the_exporter_of_a_pool_ends_first(vgpu: Slice) -> None:
    """Whoever has the memory still bears it."""
    exporter, importer, _ = shared(vgpu)
    exporter.kill()
    importer.info()
    assert vgpu.used() == CONTEXT + 512 * MIB  # pools take 32 MiB at a time
    assert importer.code(f"alloc z {LEFT - 400 * MIB}") == OUT_OF_MEMORY
    importer.do("freeasync b", "sync")
    assert vgpu.agree() == CONTEXT


def test_the_exporter_of_a_pool_frees_first(vgpu: Slice) -> None:
    """Against the driver's rules, which keeps the memory for the importer: it bears it."""
    exporter, importer, _ = shared(vgpu)
    exporter.do("freeasync a", "droppool p", "sync", "info")
    exporter.kill()
    importer.info()
    assert vgpu.used() >= CONTEXT + 500 * MIB
    importer.do("freeasync b", "sync")
    assert vgpu.agree() == CONTEXT
