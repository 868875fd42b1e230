"""The shim's books beside what the driver says from outside, for every way to memory that can be taken here.

One GPU, that nobody else uses meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import MIB
from support.vgpushim import Slice

pytestmark = pytest.mark.gpu
TOLERANCE = 2 * MIB

#: How it is taken, and how it is given back.
WAYS = {
    "100 of 1 KiB": (
        [f"alloc {chr(n)} 1k" for n in range(33, 127)],
        [f"free {chr(n)}" for n in range(33, 127)],
    ),
    "10 of 512 KiB": ([f"alloc {c} 512k" for c in "abcdefghij"], [f"free {c}" for c in "abcdefghij"]),
    "2.1 MiB": (
        [f"alloc {chr(n)} 2202009" for n in range(33, 127)],
        [f"free {chr(n)}" for n in range(33, 127)],
    ),
    "1 GiB and a byte": (["alloc a 1073741825"], ["free a"]),
    "pitch": (["pitch a 1 1000000"], ["free a"]),
    "stream order": (["async a 1000", "async b 100m"], ["freeasync a", "freeasync b", "sync"]),
    "pool that keeps": (["pool p 0", "keep p", "frompool a 500m p", "freeasync a", "sync"], ["trim p 0"]),
    "array": (["array a 1024 1024"], ["droparray a"]),
    "small arrays": ([f"array {c} 64 64" for c in "abcd"], [f"droparray {c}" for c in "abcd"]),
    "3D array": (["array3d a 300 300 64"], ["droparray a"]),
    "layers": (["array3d a 100 100 30 1"], ["droparray a"]),
    "cube": (["array3d a 512 512 6 4"], ["droparray a"]),
    "mipmap": (["mipmap a 4096 4096 0"], ["dropmipmap a"]),
    "VMM": (["create v 64m 0"], ["release v"]),
    "VMM mapped": (["create v 64m 0", "reserve r 64m", "map r v 64m 0", "release v"], ["unmap r 64m"]),
    "VMM retained": (
        ["create v 64m 0", "reserve r 64m", "map r v 64m 0", "retain q r", "release v", "unmap r 64m"],
        ["release q"],
    ),
    "VMM exported": (["create v 64m 0 1 1", "export v f", "release v"], ["close f", "info"]),
    "graph": (
        ["stream s", "graph g", "node g 100m", "instance i g", "run i", "sync"],
        ["dropinstance i", "dropgraph g", "trimgraphs 0"],
    ),
    "captured": (
        ["stream s", "capture", "async a 64m", "freeasync a", "captured g", "instance i g", "run i", "sync"],
        ["dropinstance i", "dropgraph g", "trimgraphs 0"],
    ),
    "variable of a module": (["module m 4 1g"], ["unload m"]),
    "local memory": (["module m 16k", "launch m", "sync"], None),
    "stack limit": (["limit 0 16k"], None),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_way(slice_: Slice, way: str, measured: Callable[[str, object], None]) -> None:
    take, give = WAYS[way]
    process = slice_.start()
    try:
        taken, used = slice_.taken(), slice_.used()
        process.do(*take)
        outside, books = slice_.taken() - taken, slice_.used() - used
        measured(f"{way}: MiB taken, MiB counted", f"{outside // MIB}, {books // MIB}")
        assert abs(outside - books) <= TOLERANCE
        if give:
            process.do(*give)
            assert abs(slice_.used() - used) <= TOLERANCE
            assert abs(slice_.taken() - taken) <= TOLERANCE
    finally:
        process.end()
    assert slice_.used() == 0


def test_the_resolver_of_a_real_driver(slice_: Slice) -> None:
    process = slice_.process().do("init")
    for asked, symbol in {
        "cuMemAlloc 13000 0": "cuMemAlloc_v2",
        "cuMemAllocAsync 13000 2": "cuMemAllocAsync_ptsz",
        "cuLaunchKernelEx 13000 2": "cuLaunchKernelEx_ptsz",
        "cuGetProcAddress 12000 0": "cuGetProcAddress_v2",
        "cuMemCreate 12000 0": "cuMemCreate",
    }.items():
        status, name, file = process.ask(f"proc {asked}")
        assert (status, name, file) == ("0", symbol, slice_.path("libcuda.so.1"))
    process.end()
