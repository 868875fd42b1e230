"""What one small program can show of a slice on a real driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from support import GIB, MIB
from support.gpus import smi
from support.realslice import RealSlice, native
from support.vgpushim import OUT_OF_MEMORY, Process

pytestmark = pytest.mark.gpu
TOLERANCE = 2 * MIB
Measure = Callable[[str, object], None]


@pytest.fixture(autouse=True)
def whole(slice_: RealSlice) -> Iterator[None]:
    """Every test begins with the same limit and leaves no process."""
    slice_.reset()
    with slice_.without_leftovers():
        yield


def fill(process: Process, block: int, way: str = "alloc") -> int:
    """Bytes that are granted in blocks until one is refused with the driver's code."""
    granted = 0
    for _ in range(2000):
        code = process.code(f"{way} z {block}")
        if code:
            assert code == OUT_OF_MEMORY
            return granted
        granted += block
    raise AssertionError("no end of it")


def test_linear_to_the_limit(slice_: RealSlice, measured: Measure) -> None:
    before = slice_.taken()
    process = slice_.start()
    granted = fill(process, 64 * MIB)
    measured("cuMemAlloc of 64 MiB: MiB got beside a context", granted // MIB)
    left = 10 * GIB - slice_.context
    assert left - 64 * MIB <= granted <= left
    assert slice_.taken() - before <= 10 * GIB + TOLERANCE
    rest = left - granted
    if rest >= 2 * MIB:
        process.do(f"alloc y {rest // (2 * MIB) * 2 * MIB}")
    assert process.code("alloc x 2m") == OUT_OF_MEMORY
    process.end()
    assert slice_.used() == 0


@pytest.mark.parametrize(
    "command",
    [
        "alloc a 0",
        "alloc a 18446744073709551615",
        "alloc a 18446744073709551614",
        "free a",
        "pitch a 0 4",
        "managed a 0",
        "array a 0 0",
        "async a 0",
        "create a 0 0",
        "create a 3 0",
        "release a",
        "ipcclose a",
        "limit 99 1",
        "infonull",
        "proc cuNoSuchEntry 13000 0",
        "proc cuMemAlloc 1 0",
        "leave 0",
    ],
)
def test_codes_are_the_drivers(slice_: RealSlice, command: str) -> None:
    used = slice_.used()
    with_shim, without = slice_.start(), slice_.process(**native(slice_)).start()
    with_shim.send(command)
    without.send(command)
    assert with_shim.receive()[:2] == without.receive()[:2]
    assert slice_.used() - used in (slice_.context, 0)


def test_numbers_without_a_context(slice_: RealSlice) -> None:
    codes = [p.do("init").code("info") for p in (slice_.process(), slice_.process(**native(slice_)))]
    assert codes[0] == codes[1] != 0


def test_the_default_pool_by_its_own_name(slice_: RealSlice) -> None:
    before = slice_.taken()
    process = slice_.start().do("defaultpool p 0")
    granted = fill(process, 512 * MIB, "async")
    process.do("sync")
    assert granted < 10 * GIB and slice_.taken() - before <= 10 * GIB + 64 * MIB
    process.end()
    process = slice_.start().do("defaultpool p 0")
    assert process.code("frompool a 11g p") == OUT_OF_MEMORY
    process.do("frompool a 3g p")
    assert process.code("frompool b 8g p") == OUT_OF_MEMORY
    assert abs((slice_.taken() - before) - slice_.used()) <= 34 * MIB


def test_a_pool_that_is_destroyed_first(slice_: RealSlice) -> None:
    before = slice_.taken()
    process = slice_.start().do("stream s")
    for _ in range(3):
        process.do("pool p 0", "keep p", "frompool a 600m p", "frompool b 10m p", "droppool p")
        # A pool that is gone has not told what its last pieces were rounded to.
        assert abs((slice_.taken() - before) - slice_.used()) <= 2 * TOLERANCE
        process.do("freeasync a", "freeasync b", "sync", "info")
        assert slice_.used() == slice_.context
        assert slice_.taken() - before <= slice_.context + TOLERANCE


def test_a_pool_in_two_processes(slice_: RealSlice, measured: Measure) -> None:
    exporter, importer = slice_.start(), slice_.start()
    taken, used = slice_.taken(), slice_.used()
    data = os.path.join(slice_.root, "pointer")
    exporter.do("stream s", "sharedpool p 0", "frompool a 512m p", "sync", "exportpool p f")
    exporter.do(f"exportpointer a {data}")
    (fd,) = exporter.ask("show f")
    importer.do("stream s", f"importpool q {exporter.pid} {fd}", f"importpointer b q {data}")
    outside, books = slice_.taken() - taken, slice_.used() - used
    measured("pool of 512 MiB in two processes: MiB taken, counted", f"{outside // MIB}, {books // MIB}")
    assert abs(outside - books) <= TOLERANCE
    exporter.kill()
    importer.do("info")
    outside, books = slice_.taken() - taken + slice_.context, slice_.used() - used + slice_.context
    measured("its exporter is gone: MiB taken, counted", f"{outside // MIB}, {books // MIB}")
    assert books >= outside - 2 * TOLERANCE  # what a context takes differs by some MiB from one to the next
    importer.do("freeasync b", "sync", "info")
    assert slice_.used() == slice_.context


def test_handles_in_two_processes(slice_: RealSlice) -> None:
    exporter, importer = slice_.start(), slice_.start()
    taken, used = slice_.taken(), slice_.used()
    path = os.path.join(slice_.root, "handle")
    exporter.do("alloc a 512m", f"ipcget a {path}", "create v 512m 0 1 1", "export v f")
    (fd,) = exporter.ask("show f")
    importer.do(f"ipcopen b {path}", f"importfrom w {exporter.pid} {fd}", "reserve r 512m", "map r w 512m 0")
    assert abs((slice_.taken() - taken) - (slice_.used() - used)) <= TOLERANCE
    assert slice_.used() - used == 1024 * MIB
    importer.do("ipcclose b", "unmap r 512m", "release w")
    exporter.do("free a", "release v", "close f", "info")
    assert slice_.used() == used


def test_memory_of_the_host_is_free(slice_: RealSlice) -> None:
    process = slice_.start()
    used = slice_.used()
    process.do("create h 64m 0 3", "release h")  # of a NUMA node
    assert slice_.used() == used


def test_a_second_context(slice_: RealSlice, measured: Measure) -> None:
    process = slice_.start().do("primary 0", "primary 0")
    taken, used = slice_.taken(), slice_.used()
    process.do("context c 0")
    measured("second context: MiB taken", (slice_.taken() - taken) // MIB)
    assert slice_.used() - used >= slice_.taken() - taken - TOLERANCE
    process.do("dropcontext c")
    assert slice_.used() == used
    process.do("leave 0", "leave 0")
    assert slice_.used() == used
    process.do("leave 0")
    assert slice_.used() == 0


def test_a_green_context(slice_: RealSlice, measured: Measure) -> None:
    process = slice_.start()
    taken, used = slice_.taken(), slice_.used()
    process.do("green g 0")
    measured(
        "green context: MiB taken, counted", f"{(slice_.taken() - taken) / MIB}, {slice_.used() - used}"
    )
    process.do("usegreen g", "alloc a 512m")
    measured("512 MiB in it: MiB taken", (slice_.taken() - taken) / MIB)
    assert slice_.used() - used == 512 * MIB
    assert process.code("alloc b 10g") == OUT_OF_MEMORY
    process.do("free a", "primary 0", "dropgreen g")
    assert slice_.used() == used


def test_a_library_that_loads_when_it_is_used(slice_: RealSlice) -> None:
    process = slice_.start()
    taken, used = slice_.taken(), slice_.used()
    process.do("library l 4 1g")
    process.do("kernel l")
    assert slice_.used() - used >= slice_.taken() - taken - TOLERANCE
    process.do("library k 4 9g")
    assert process.code("kernel k") == OUT_OF_MEMORY


def test_a_node_that_gets_a_hungrier_kernel(slice_: RealSlice) -> None:
    before = slice_.taken()
    process = slice_.start().do("stream s", "module m 4", "module n 16k", "graph g", "kernelnode k g m")
    process.do("instance i g", "setinstance i k n 2", "run i", "sync")
    assert slice_.used() >= slice_.taken() - before - 64 * MIB


def test_what_the_shim_keeps_resident(slice_: RealSlice, measured: Measure) -> None:
    process = slice_.start().do("alloc a 8m", "alloc b 1k", "info")
    resident, on = 0, False
    with open(f"/proc/{process.pid}/smaps", encoding="utf-8") as maps:
        for line in maps:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                on = slice_.path("libcuda.so.1") in line or "nvc/ledger" in line
            elif on and words[0] == "Rss:":
                resident += int(words[1])
    measured("shim and ledger resident, KiB", resident)
    assert resident < 1024
    with_shim = len(os.listdir(f"/proc/{process.pid}/task"))
    without = slice_.process(**native(slice_)).start().do("alloc a 8m")
    assert with_shim == len(os.listdir(f"/proc/{without.pid}/task"))


def test_it_is_an_idle_gpu() -> None:
    """Every figure here is of the whole device."""
    assert int(smi("memory.used")) < 4096
