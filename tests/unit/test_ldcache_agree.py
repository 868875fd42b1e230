"""The Python reader of loader caches and the C merge's reader see the same entries in the same bytes."""

from __future__ import annotations

import struct
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st
from support.ldcache import EXTENSION, FORMATS, X86_64, Entry, descending, make, read

from nvc._syscalls import ffi, lib
from nvc.base.errors import DetectionError
from nvc.discovery.driver.ldcache import parse_cache

Listed = tuple[int, str, str]

NAMES = st.text(st.sampled_from("ab019.-_é"), min_size=1, max_size=9)
PATHS = NAMES.map("/lib/".__add__)
ENTRIES = st.lists(
    st.builds(
        Entry,
        NAMES,
        PATHS,
        st.sampled_from([X86_64, 0x0003, 0x0001, 0x0A03, 0x80000003]),
        st.sampled_from([0, 0, 1 << 63, EXTENSION, EXTENSION | 1 << 32 | 1]),
        st.sampled_from([0, 0x020620]),
    ),
    max_size=12,
)
CACHES = st.builds(make, ENTRIES, st.sampled_from(FORMATS), st.sampled_from([(), ("v1", "v2")]))


def kept(data: bytes) -> list[Listed] | None:
    """The entries that the merge keeps when nothing is added; None when it refuses the cache."""
    out, size = ffi.new("uint8_t **"), ffi.new("size_t *")
    result = lib.nvc_ldcache_merge(data, len(data), ffi.NULL, 0, ffi.NULL, 0, out, size)
    if result:
        return None
    merged = bytes(ffi.buffer(out[0], size[0]))
    lib.nvc_ldcache_free(out[0])
    return parse_cache(merged)


def parsed(data: bytes) -> list[Listed] | None:
    """The entries that discovery reads; None when it refuses the cache, which one bad entry is enough for."""
    try:
        return parse_cache(data)
    except DetectionError:
        return None


def test_host_cache() -> None:
    data = read("/etc/ld.so.cache")
    assert kept(data) == parsed(data)


@given(ENTRIES, st.sampled_from(FORMATS), st.sampled_from([0, 2]))
def test_whole_cache(entries: list[Entry], flavour: str, order: int) -> None:
    data = make(descending(entries), flavour, ("v1", "v2"), b"tester", order)
    # The old part of a cache has no entries with hwcaps.
    wanted = [entry for entry in descending(entries) if flavour != "old" or not entry.hwcap]
    found = parsed(data)
    assert found is not None and [item[1:] for item in found] == [entry[:2] for entry in wanted]
    assert kept(data) == found


def test_byte_order() -> None:
    for order in range(256):
        for flavour in ("new", "compat"):
            data = make([Entry("libz.so.1", "/lib/libz.so.1")], flavour, order=order)
            found = parsed(data)
            assert kept(data) == found and (found is None) == (order != 0 and order % 4 != 2)


@given(st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), max_size=8), st.binary(max_size=64))
@example([(0, 0)], b"x")
@example([(0, 1)], b"x\0")
@example([(0, 2)], b"x\0")
def test_strings_anywhere(places: list[tuple[int, int]], strings: bytes) -> None:
    start = 48 + 24 * len(places)
    entries = [struct.pack("<IIIIQ", X86_64, start + name, start + path, 0, 0) for name, path in places]
    header = struct.pack("<20sIIBxxxIIII", b"glibc-ld.so.cache1.1", len(places), len(strings), 2, 0, 0, 0, 0)
    data = header + b"".join(entries) + strings
    whole = [place for place in places if all(b"\0" in strings[at:] for at in place)]
    found, left = parsed(data), kept(data)
    assert left is not None and len(left) == len(whole)
    assert (
        found is None if len(whole) < len(places) else found is not None and Counter(found) == Counter(left)
    )


@given(
    CACHES, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4), st.data()
)
def test_damaged_cache(cache: bytes, pokes: list[tuple[int, int]], draw: st.DataObject) -> None:
    damaged = bytearray(cache)
    for at, value in pokes:
        if at < len(damaged):
            damaged[at] = value
    data = bytes(damaged[: draw.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))])
    found, left = parsed(data), kept(data)
    if found is not None:
        # The merge leaves out single entries (strings inside the tables) where discovery refuses all or reads them.
        assert left is not None and not Counter(left) - Counter(found)
