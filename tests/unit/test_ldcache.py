"""The loader cache's reader: every layout, held against ldconfig; and bytes that lie."""

from __future__ import annotations

import struct

import pytest
from support import need, run

from nvc.base.errors import DetectionError
from nvc.discovery.driver.ldcache import CACHE_LIMIT, parse_cache
from nvc.testing.sim.loadercache import write

NEW_MAGIC, OLD_MAGIC = b"glibc-ld.so.cache1.1", b"ld.so-1.7.0"
ENTRIES = [
    ("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "x86_64"),
    ("libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1", "i386"),
    ("libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "x86_64"),
    ("libz.so.1", "/lib/libz.so.1", "x86_64"),
]


def old_cache(entries: list[tuple[str, str, str]]) -> bytes:
    """A cache in the old layout alone, as glibc 2.1 wrote it."""
    flags = {"x86_64": 0x0303, "i386": 0x0003}
    strings = bytearray()
    table = bytearray(struct.pack("<12sI", OLD_MAGIC, len(entries)))
    for name, path, arch in sorted(entries, reverse=True):
        at = len(strings), len(strings) + len(name) + 1
        strings += name.encode() + b"\0" + path.encode() + b"\0"
        table += struct.pack("<iII", flags[arch], *at)
    return bytes(table + strings)


def printed(path: str) -> list[tuple[str, str]]:
    """(name, path) of every entry as `ldconfig -p` prints the cache."""
    lines = run(need("ldconfig"), "-p", "-C", path).stdout.splitlines()
    split = [line.strip().partition(" (") for line in lines if " => " in line]
    return [(name, rest.partition(" => ")[2]) for name, _, rest in split]


@pytest.mark.parametrize("data", [write(ENTRIES), write(ENTRIES, True), old_cache(ENTRIES)])
def test_reads_each_layout_as_ldconfig_does(scratch: str, data: bytes) -> None:
    with open(f"{scratch}/cache", "wb") as file:
        file.write(data)
    found = parse_cache(data)
    assert [(name, path) for _, name, path in found] == printed(f"{scratch}/cache")
    assert {(name, path) for _, name, path in found} == {(name, path) for name, path, _ in ENTRIES}


@pytest.mark.parametrize("combined", [False, True])
def test_prefixes_keep_only_what_begins_with_them(combined: bool) -> None:
    data = write(ENTRIES, combined)
    found = parse_cache(data, (b"libcuda.so", b"libz"))
    assert {name for _, name, _ in found} == {"libcuda.so.1", "libz.so.1"}
    assert len(parse_cache(data)) == 4


def test_refuses_the_other_byte_order() -> None:
    data = bytearray(write(ENTRIES))
    data[28] = 3
    with pytest.raises(DetectionError, match="damaged"):
        parse_cache(bytes(data))
    data[28] = 0  # written before byte order was recorded
    assert len(parse_cache(bytes(data))) == 4


def test_refuses_what_is_no_cache() -> None:
    for data in (b"", b"\0" * 100, b"ld.so-1.8.0" + bytes(100), b"glibc-ld.so.cache1.2" + bytes(100)):
        with pytest.raises(DetectionError, match="unsupported file format"):
            parse_cache(data)
    with pytest.raises(DetectionError, match="unsupported file format"):
        parse_cache(NEW_MAGIC + bytes(CACHE_LIMIT))


@pytest.mark.parametrize("data", [write(ENTRIES), write(ENTRIES, True), old_cache(ENTRIES)])
def test_a_truncated_cache_is_refused_at_every_byte(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(DetectionError):
            parse_cache(data[:size])


def test_a_name_without_end_or_outside_is_refused() -> None:
    header = struct.pack("<20sIIB19x", NEW_MAGIC, 1, 4, 2)
    outside = struct.pack("<iIIIQ", 0x303, 1 << 31, 72, 0, 0) + b"abc\0"
    endless = struct.pack("<iIIIQ", 0x303, 72, 72, 0, 0) + b"abcd"
    for body in (outside, endless):
        with pytest.raises(DetectionError, match="damaged"):
            parse_cache(header + body)


def test_entries_that_share_one_long_name_do_not_multiply_it() -> None:
    text = b"lib" + b"x" * 250 + b"\0"
    count = 5000
    data = struct.pack("<20sIIB19x", NEW_MAGIC, count, len(text), 2)
    data += struct.pack("<iIIIQ", 0x303, 48 + 24 * count, 48 + 24 * count, 0, 0) * count + text
    with pytest.raises(DetectionError, match="damaged"):
        parse_cache(data)
