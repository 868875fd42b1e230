"""Every way to device memory counts as the driver takes it, and stops at the limit with the driver's code."""

from __future__ import annotations

import pytest
from support import GIB, MIB
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Slice

from nvc.model.slices import layout

INVALID = 1
NOT_SUPPORTED = 801
LEFT = 2 * GIB - CONTEXT  # of the slice, beside a context


def test_linear_up_to_the_limit_and_back(vgpu: Slice) -> None:
    process = vgpu.start()
    names = [chr(n) for n in range(ord("a"), ord("a") + 30)]
    codes = [process.code(f"alloc {name} 64m") for name in names]
    granted = codes.count(0)
    assert granted == LEFT // (64 * MIB)
    assert set(codes[granted:]) == {OUT_OF_MEMORY}
    assert vgpu.agree() == CONTEXT + granted * 64 * MIB and vgpu.refused() == len(names) - granted
    process.do(*(f"free {name}" for name in names[:granted]))
    assert vgpu.agree() == CONTEXT


def test_exactly_the_limit_and_not_a_byte_more(vgpu: Slice) -> None:
    process = vgpu.start().do(f"alloc a {LEFT}")
    assert process.info() == (0, 2 * GIB)
    assert process.code("alloc b 1") == OUT_OF_MEMORY
    assert vgpu.agree() == 2 * GIB


def test_small_ones_share_chunks(vgpu: Slice) -> None:
    process = vgpu.start()
    process.do(*(f"alloc {name} 512k" for name in "abcdefghij"))
    assert vgpu.agree() == CONTEXT + 6 * MIB
    process.do(*(f"free {name}" for name in "abcdefgh"))
    assert vgpu.agree() == CONTEXT + 2 * MIB
    process.do("alloc a 1m", f"alloc z {LEFT - 4 * MIB}")
    assert vgpu.agree() <= 2 * GIB
    process.do("free i", "free j", "free a", "free z")
    assert vgpu.agree() == CONTEXT


def test_a_full_slice_has_room_in_its_chunks(vgpu: Slice) -> None:
    process = vgpu.start().do("alloc a 1k", f"alloc z {LEFT - 2 * MIB}", "alloc b 1k")
    assert process.info()[0] == 0
    assert process.code("alloc c 3m") == OUT_OF_MEMORY
    process.do("free b")
    assert vgpu.agree() == 2 * GIB


def test_rounding_counts(vgpu: Slice) -> None:
    process = vgpu.start().do(f"alloc a {MIB + 1}", f"alloc b {2 * MIB + 1}")
    assert vgpu.agree() == CONTEXT + 6 * MIB
    process.do("pitch c 1 1000000")
    assert vgpu.agree() == CONTEXT + 6 * MIB + 490 * MIB
    assert process.code("pitch d 1 4000000") == OUT_OF_MEMORY
    process.do("free a", "free b", "free c")
    assert vgpu.agree() == CONTEXT


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("alloc a 0", INVALID),
        ("alloc a 18446744073709551615", OUT_OF_MEMORY),
        ("alloc a 18446744073709551614", OUT_OF_MEMORY),
        ("pitch a 18446744073709551615 2", OUT_OF_MEMORY),
        ("managed a 3g", OUT_OF_MEMORY),
        ("async a 18446744073709551615", OUT_OF_MEMORY),
        ("create a 18446744073709551615 0", OUT_OF_MEMORY),
        ("free a", INVALID),
        ("ipcclose a", INVALID),
    ],
)
def test_bad_requests_change_nothing(vgpu: Slice, command: str, code: int) -> None:
    process = vgpu.start()
    assert process.code(command) == code
    assert vgpu.agree() == CONTEXT


def test_frees_that_are_wrong_are_the_drivers_to_refuse(vgpu: Slice) -> None:
    process = vgpu.start().do("alloc a 8m")
    assert process.code("freeat a 2m") == INVALID
    process.do("free a")
    assert process.code("free a") == INVALID
    assert vgpu.agree() == CONTEXT


def test_managed_memory_stays_with_the_device_that_it_is_charged_to(vgpu: Slice) -> None:
    process = vgpu.start().do("primary 1", "managed a 1g", "primary 0", "managed b 64m", "stream s")
    for command in ("prefer a 1g 0", "prefetch a 1g 0", "prefetch2 a 1g 0", "prefetchall a 1g 0"):
        assert process.code(command) == NOT_SUPPORTED
    process.do("prefer a 1g 1", "prefetch a 1g 1", "prefetchall a 1g 1")
    process.do("prefer b 64m 0", "prefetch b 64m 0", "prefetch2 b 64m 0")


def test_a_graph_runs_again_after_a_trim(vgpu: Slice) -> None:
    process = vgpu.start().do("stream s", "graph a", "node a 1g", "instance A a", "run A", "wait")
    process.do("trimgraphs 0", "run A", "wait")


def test_managed_memory_counts_in_full(vgpu: Slice) -> None:
    process = vgpu.start().do("managed a 1g")
    assert vgpu.used() == CONTEXT + GIB
    assert process.code("managed b 1g") == OUT_OF_MEMORY
    process.do("free a", "managed a 100", "free a")
    assert vgpu.agree() == CONTEXT


def test_stream_order(vgpu: Slice) -> None:
    process = vgpu.start()
    for _ in range(100):
        process.do("async a 64m", "freeasync a")
    process.do("sync")
    assert vgpu.agree() == CONTEXT
    process.do("async a 1000", "async_ptsz b 40m")
    assert vgpu.agree() == CONTEXT + 96 * MIB
    assert process.code("async c 1500m") == OUT_OF_MEMORY
    process.do("free a", "freeasync b", "sync")
    assert vgpu.agree() == CONTEXT


def test_a_pool_counts_what_it_keeps(vgpu: Slice) -> None:
    process = vgpu.start().do("pool p 0", "keep p", "frompool a 500m p", "freeasync a", "sync")
    assert vgpu.agree() == CONTEXT + 512 * MIB
    process.do("frompool a 500m p")  # again the same memory
    assert vgpu.agree() == CONTEXT + 512 * MIB
    process.do("freeasync a", "sync", f"alloc z {LEFT - 512 * MIB}", "frompool a 500m p")
    assert vgpu.refused() == 0
    assert process.code("frompool b 32m p") == OUT_OF_MEMORY and vgpu.refused() == 1
    process.do("freeasync a", "sync", "trim p 0")
    assert vgpu.agree() == 2 * GIB - 512 * MIB
    process.do("droppool p", "free z")
    assert vgpu.agree() == CONTEXT


def test_memory_without_addresses(vgpu: Slice) -> None:
    process = vgpu.start().do("create v 64m 0", "create w 64m 0", "reserve r 256m")
    assert vgpu.agree() == CONTEXT + 128 * MIB
    process.do("map r v 64m 0", "release v")
    assert vgpu.agree() == CONTEXT + 128 * MIB  # mapped still
    process.do("map r w 64m 64m", "unmap r 128m")
    assert vgpu.agree() == CONTEXT + 64 * MIB
    process.do("release w")
    assert vgpu.agree() == CONTEXT
    assert process.code("create v 1600m 0") == OUT_OF_MEMORY


def test_a_retained_handle_keeps_the_charge(vgpu: Slice) -> None:
    process = vgpu.start().do("create v 64m 0", "reserve r 64m", "map r v 64m 0")
    process.do("retain q r", "release q")
    assert vgpu.agree() == CONTEXT + 64 * MIB
    process.do("retain q r", "release v", "unmap r 64m")
    assert vgpu.agree() == CONTEXT + 64 * MIB
    process.do("release q")
    assert vgpu.agree() == CONTEXT
    assert process.code("release q") == INVALID


def test_memory_is_charged_where_it_lies(vgpu: Slice) -> None:
    vgpu.start(0).do("create v 64m 1", "create h 64m 0 2", "create h 3g 0 2")
    assert (vgpu.agree(0), vgpu.agree(1)) == (CONTEXT, 64 * MIB)


def test_a_handle_that_comes_back(vgpu: Slice) -> None:
    """An import of what the process exports itself is another reference, whatever the driver calls it."""
    process = vgpu.start().do("create v 64m 0 1 1", "export v f", "import w f", "close f", "release v")
    assert vgpu.agree() == CONTEXT + 64 * MIB
    process.do("release w")
    assert vgpu.agree() == CONTEXT


def test_a_descriptor_keeps_the_charge(vgpu: Slice) -> None:
    """As it keeps the memory, with a real driver."""
    process = vgpu.start().do("create v 64m 0 1 1", "export v f", "release v")
    assert vgpu.used() == CONTEXT + 64 * MIB
    process.do("close f", "info")
    assert vgpu.agree() == CONTEXT


@pytest.mark.parametrize(
    ("command", "mebibytes"),
    [
        ("array a 1024 1024", 16),
        ("array a 1000 1", 2),
        ("array3d a 256 256 64", 64),
        ("array3d a 512 512 6 4", 24),
        ("array3d a 64 64 100 1", 8),
    ],
)
def test_arrays(vgpu: Slice, command: str, mebibytes: int) -> None:
    process = vgpu.start().do(command)
    assert vgpu.agree() == CONTEXT + mebibytes * MIB
    process.do("droparray a")
    assert vgpu.agree() == CONTEXT
    process.do(f"alloc z {LEFT - 2 * MIB + 2 * MIB}")
    assert process.code(command) == OUT_OF_MEMORY


def test_mipmaps_within_a_tenth(vgpu: Slice) -> None:
    process = vgpu.start().do("mipmap a 1024 1024 0")
    assert 0 <= vgpu.used() - vgpu.taken() <= 2 * MIB
    process.do("dropmipmap a")
    assert vgpu.agree() == CONTEXT
    assert process.code("mipmap a 8192 8192 0") == 0
    assert process.code("mipmap b 8192 8192 0") == OUT_OF_MEMORY


def test_sparse_arrays_take_nothing_yet(vgpu: Slice) -> None:
    vgpu.start().code("array3d a 16384 16384 8 64")
    assert vgpu.used() == CONTEXT


def test_graph_memory(vgpu: Slice) -> None:
    process = vgpu.start().do("graph g", "node g 100m", "instance i g", "run i", "run i", "sync")
    assert vgpu.agree() == CONTEXT + 128 * MIB
    process.do("dropinstance i", "dropgraph g")
    assert vgpu.agree() == CONTEXT + 128 * MIB  # kept for the next graph
    process.do("trimgraphs 0")
    assert vgpu.agree() == CONTEXT
    process.do("graph g", "node g 1800m", "instance i g")
    assert process.code("run i") == OUT_OF_MEMORY
    assert vgpu.agree() == CONTEXT


def test_graphs_that_free_their_memory_share_it(vgpu: Slice) -> None:
    """Only one fits at a time; each run needs what the other had."""
    process = vgpu.start().do("stream s", "graph a", "node a 1g", "instance A a", "graph b", "node b 1g")
    process.do("instance B b", "run A", "run B", "run A", "run B", "run B", "run A", "sync")
    assert vgpu.agree() == CONTEXT + GIB


def test_graph_memory_that_is_left_over_makes_room(vgpu: Slice) -> None:
    process = vgpu.start().do("graph g", "node g 800m", "instance i g", "run i", "sync", "dropinstance i")
    process.do("dropgraph g", "graph h", "node h 1000m", "instance j h", "run j", "sync")
    assert vgpu.agree() == CONTEXT + 1024 * MIB


def test_variables_of_modules(vgpu: Slice) -> None:
    process = vgpu.start().do("module m 4 1g")
    assert vgpu.agree() == CONTEXT + GIB
    assert process.code("module n 4 1g") == OUT_OF_MEMORY
    process.do("unload m", "library l 4 512m")
    assert vgpu.used() == CONTEXT  # nothing of it was used yet
    process.do("kernel l")
    assert vgpu.used() == CONTEXT + 512 * MIB
    process.do("library k 4 1g")
    assert process.code("kernel k") == OUT_OF_MEMORY
    process.do("dropkernels l", "dropkernels k")
    assert vgpu.agree() == CONTEXT


def test_the_first_module_stands_for_code(vgpu: Slice) -> None:
    vgpu.limit(2 * GIB, 2 * GIB, module_overhead=100 * MIB)
    process = vgpu.start().do("module m", "module n", "library l")
    assert vgpu.used() == CONTEXT + 100 * MIB
    process.do("reset 0")
    assert vgpu.used() == 0


def test_local_memory_of_threads(vgpu: Slice) -> None:
    threads = 132 * 2048
    vgpu.limit(8 * GIB, GIB)
    process = vgpu.start().do("module m 16k", "launch m", "launch m")
    assert vgpu.agree() == CONTEXT + threads * 15 * 1024
    process.do("unload m", "module m 4k", "launch m")
    assert vgpu.agree() == CONTEXT + threads * 15 * 1024  # the driver keeps it
    process.do("module n 64k")
    assert process.code("launch n") == OUT_OF_MEMORY
    process.do("reset 0")
    assert vgpu.agree() == 0


def test_limits_of_contexts(vgpu: Slice) -> None:
    process = vgpu.start().do("limit 0 2k", "limit 2 64m")
    assert vgpu.agree() == CONTEXT + 264 * MIB + 56 * MIB
    process.do("limit 2 8m", "limit 0 1k")
    assert vgpu.agree() == CONTEXT + 264 * MIB
    assert process.code("limit 2 3g") == OUT_OF_MEMORY
    assert process.code("limit 0 16k") == OUT_OF_MEMORY
    assert vgpu.agree() == CONTEXT + 264 * MIB


@pytest.mark.parametrize("limit", [3, 4])
def test_limits_of_kernels_that_launch_kernels_are_not_raised(vgpu: Slice, limit: int) -> None:
    """Nothing tells what they take."""
    process = vgpu.start()
    assert process.code(f"limit {limit} 100000") == 215
    process.do(f"limit {limit} 1")
    vgpu.limit(layout.NO_LIMIT, GIB)
    process.do(f"limit {limit} 100000")


def test_a_descriptor_of_another_subsystem_is_refused(vgpu: Slice) -> None:
    """It would keep the memory after its free. Without a limit it is the driver's to give."""
    process = vgpu.start().do("alloc a 8m")
    assert (process.code("attribute 124"), process.code("dmabuf a")) == (0, 801)
    vgpu.limit(layout.NO_LIMIT, GIB)
    assert (process.code("attribute 124"), process.code("dmabuf a")) == (1, 0)


def test_contexts_count_and_take_what_is_theirs_along(vgpu: Slice) -> None:
    process = vgpu.start().do("context c 0", "alloc a 64m", "alloc b 1k", "array d 512 512")
    assert vgpu.agree() == 2 * CONTEXT + 64 * MIB + 4 * MIB + 2 * MIB
    process.do("context d 0")
    assert process.code("context e 0") == OUT_OF_MEMORY
    process.do("dropcontext d", "dropcontext c")
    assert vgpu.agree() == CONTEXT


def test_a_primary_context_counts_once(vgpu: Slice) -> None:
    process = vgpu.start().do("primary 0", "primary 0", "alloc a 10m")
    assert vgpu.agree() == CONTEXT + 10 * MIB
    process.do("leave 0", "leave 0")
    assert vgpu.agree() == CONTEXT + 10 * MIB
    process.do("leave 0")
    assert vgpu.agree() == 0
    process.do("primary 0", "alloc a 10m", "reset 0")
    assert vgpu.agree() == 0


def test_a_context_that_does_not_fit(vgpu: Slice) -> None:
    vgpu.limit(CONTEXT - 1, CONTEXT)
    process = vgpu.process().do("init")
    assert process.code("primary 0") == OUT_OF_MEMORY
    assert process.code("context c 0") == OUT_OF_MEMORY
    process.do("primary 1")
    assert (vgpu.agree(0), vgpu.agree(1)) == (0, CONTEXT)


def test_many_threads(vgpu: Slice) -> None:
    process = vgpu.start()
    assert process.code("threads 8 100m 200") == 0
    assert vgpu.agree() == CONTEXT


def test_many_operations(vgpu: Slice) -> None:
    process = vgpu.start()
    assert process.code("threads 1 5m 20000") == 0
    assert vgpu.agree() == CONTEXT
