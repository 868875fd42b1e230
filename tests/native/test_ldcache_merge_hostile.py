"""The loader cache merge against caches that lie: refused, or merged in bounded time and size."""

from __future__ import annotations

import struct

import pytest
from support import run
from support.ldcache import (
    EXTENSION,
    FORMATS,
    X86_64,
    Entry,
    Refused,
    Tool,
    descending,
    listing,
    make,
    read,
)
from support.nightly import few

LIMIT = 32 * 1024 * 1024
ENTRIES_LIMIT = 1_000_000
OURS = Entry("libcuda.so.1", "/driver/libcuda.so.1")
IMAGE = descending([Entry(f"lib{name}.so.{name}", f"/lib/lib{name}.so.{name}") for name in range(9)])
HEADER = 48
COUNT_AT, DIRECTORY_AT = 20, 32


def poke(content: bytes, at: int, *values: int) -> bytes:
    """`content` with other 32-bit words from `at`."""
    changed = bytearray(content)
    struct.pack_into(f"<{len(values)}I", changed, at, *values)
    return bytes(changed)


def table(places: list[tuple[int, int]], strings: bytes) -> bytes:
    """A cache whose entries have their name and path at these offsets in `strings`."""
    start = HEADER + 24 * len(places)
    header = struct.pack("<20sIIIIIII", b"glibc-ld.so.cache1.1", len(places), len(strings), 2, 0, 0, 0, 0)
    entry = struct.Struct("<IIIIQ")
    entries = (entry.pack(X86_64, start + name, start + path, 0, 0) for name, path in places)
    return header + b"".join(entries) + strings


REFUSED = {
    "text": b"# not a cache\n" * 20,
    "one byte": b"g",
    "a cut header": make(IMAGE)[: HEADER - 1],
    "only the old magic": b"ld.so-1.7.0\0\1\0\0",
    "foreign byte order": make(IMAGE, order=3),
    "invalid byte order": make(IMAGE, order=1),
    "foreign byte order behind an old part": make(IMAGE, "compat", order=3),
    "another version": make(IMAGE).replace(b"1.1", b"1.2", 1),
    "more entries than bytes": poke(make(IMAGE), COUNT_AT, 1000),
    "the greatest count": poke(make(IMAGE), COUNT_AT, 0xFFFFFFFF),
    "the greatest count of old ones": poke(make(IMAGE, "old"), 12, 0xFFFFFFFF),
    "old entries without an end": make(IMAGE, "old")[:30],
    "a count behind an old part": poke(make(IMAGE, "compat"), 16 + 12 * 10 + COUNT_AT, 1000),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_cache_is_refused(ldcache: Tool, name: str) -> None:
    with pytest.raises(Refused, match="EBADMSG"):
        ldcache.merge(ldcache.path(REFUSED[name]), OURS)


def test_limits(ldcache_fast: str, scratch: str) -> None:
    """Of a million entries, by the tool as it is used: sanitizers would take long over them."""
    fast = Tool(ldcache_fast, scratch)

    def entries(count: int) -> str:
        content = table([(0, 0)], b"")
        offset = HEADER + 24 * count
        entry = struct.pack("<IIIIQ", X86_64, offset, offset, 0, 0)
        header = poke(content, COUNT_AT, count, 2)
        return fast.path(header[:HEADER] + entry * count + b"x\0")

    def size(total: int) -> str:
        content = make(IMAGE)
        return fast.path(content + bytes(total - len(content)))

    most = entries(ENTRIES_LIMIT)
    (count,) = struct.unpack_from("<I", read(fast.merge(most)), COUNT_AT)
    assert count == ENTRIES_LIMIT
    assert len(listing(fast.merge(size(LIMIT), OURS))) == len(IMAGE) + 1
    refused = [(most, (OURS,)), (entries(ENTRIES_LIMIT + 1), ()), (size(LIMIT + 1), ())]
    for path, add in refused:
        with pytest.raises(Refused, match="EBADMSG"):
            fast.merge(path, *add)


@pytest.mark.parametrize(
    "entry",
    [
        Entry("", "/lib/x"),
        Entry("x" * 256, "/lib/x"),
        Entry("x", ""),
        Entry("x", "lib/x"),
        Entry("x", "/" + "x" * 4095),
    ],
    ids=["no name", "a name too long", "no path", "a relative path", "a path too long"],
)
def test_impossible_addition_is_refused(ldcache: Tool, entry: Entry) -> None:
    with pytest.raises(Refused, match="EINVAL"):
        ldcache.merge("-", OURS, entry)


@pytest.mark.parametrize("flavour", FORMATS)
@pytest.mark.parametrize(
    ("field", "value"), [(4, 0), (8, HEADER), (4, 0x7FFFFFFF), (8, 0xFFFFFFF0), (4, -1), (8, -2)]
)
def test_entry_with_a_string_out_of_bounds_is_left_out(
    ldcache: Tool, flavour: str, field: int, value: int
) -> None:
    content = make(IMAGE, flavour)
    start = content.find(b"glibc-ld.so.cache1.1")
    base, first, each = (start, start + HEADER, 24) if start >= 0 else (16 + 12 * len(IMAGE), 16, 12)
    if start < 0 and 0 <= value <= HEADER:
        value = len(content) - base + value
    # Below zero: just behind the end of the file, or at its last byte when that is made no NUL.
    offset = value if value >= 0 else len(content) - base + value + 1
    if value == -2:
        content = content[:-1] + b"x"
    merged = ldcache.merge(ldcache.path(poke(content, first + 3 * each + field, offset)), OURS)
    left = {entry.path for entry in IMAGE} - {IMAGE[3].path}
    paths = {line.path for line in listing(merged)}
    assert paths == {OURS.path} | (left - {IMAGE[-1].path} if value == -2 else left)


def test_names_longer_than_any_file_name_are_left_out(ldcache: Tool) -> None:
    image = [Entry("x" * length, f"/{length}") for length in (256, 255)]
    assert [line.path for line in listing(ldcache.merge(ldcache.path(make(image))))] == ["/255"]


def test_overlapping_strings_do_not_grow(ldcache: Tool) -> None:
    length = 6000
    content = table([(length - 1 - i % 200, i) for i in range(length)], b"a" * length + b"\0")
    merged = read(ldcache.merge(ldcache.path(content), OURS))
    assert len(merged) < len(content) + 200


@pytest.mark.parametrize("name", few(["1" * 254, "a" * 254], 2))
def test_unsorted_cache_that_is_expensive_to_sort_is_refused_in_time(
    ldcache: Tool, ldcache_fast: str, name: str
) -> None:
    """Each of 900,000 names is an end of one of a few long ones, so that every comparison takes long."""
    strings = b"".join(name.encode() + b"%c\0" % (97 + i % 26) for i in range(1000))
    places = [(i * 7919 % len(strings), 0) for i in range(900_000)]
    path = ldcache.path(table(places, strings))
    result, spent = run(ldcache_fast, "time", path, "1", *ldcache.request((OURS,))).stdout.split()
    assert result == "EBADMSG" and int(spent) < 2_000_000


def test_extension_directory_that_lies_is_dropped(ldcache: Tool) -> None:
    image = [
        Entry("libz.so.1", "/lib/glibc-hwcaps/x86-64-v3/libz.so.1", hwcap=EXTENSION),
        Entry("libz.so.1", "/lib/libz.so.1"),
    ]
    content = make(image, hwcaps=("x86-64-v3",), generator=b"tester")
    at = struct.unpack_from("<I", content, DIRECTORY_AT)[0]

    def hwcaps(merged: str) -> list[str]:
        return [line.words for line in listing(merged) if "hwcap" in line.words]

    assert hwcaps(ldcache.merge(ldcache.path(content), OURS)) == ['libc6,x86-64, hwcap: "x86-64-v3"']
    lies = {
        "directory out of bounds": poke(content, DIRECTORY_AT, len(content) // 4 * 4),
        "directory misaligned": poke(content, DIRECTORY_AT, at + 1),
        "no magic": poke(content, at, 0),
        "too many sections": poke(content, at + 4, 0xFFFFFFFF),
        "section out of bounds": poke(content, at + 8 + 16 + 8, 0xFFFFFFF0),
        "section misaligned": poke(content, at + 8 + 8, at + 1),
        "section of odd size": poke(content, at + 8 + 12, 3),
        "name out of bounds": poke(content, at + 8 + 32, 0xFFFFFFF0),
    }
    for lie, cache in lies.items():
        merged = ldcache.merge(ldcache.path(cache), OURS)
        assert not any("x86-64-v3" in words for words in hwcaps(merged)), lie
        assert {line.path for line in listing(merged)} == {OURS.path, *(entry.path for entry in image)}, lie


def test_unknown_sections_are_dropped(ldcache: Tool) -> None:
    content = make(IMAGE, generator=b"tester", sections=((7, b"future" * 50), (0xFFFFFFFF, b"")))
    assert b"future" in content
    merged = read(ldcache.merge(ldcache.path(content), OURS))
    assert b"future" not in merged and merged.endswith(b"tester")


def test_names_among_which_ours_cannot_be_found_are_refused(ldcache: Tool) -> None:
    """The loader's numbers wrap: the two stand in an order in which it misses ours."""
    numbers = (3_000_000_000, *range(2_000_000_004, 2_000_000_000, -1))
    image = [Entry(f"libcuda.so.{number}", "/x") for number in numbers]
    assert read(ldcache.merge(ldcache.path(make(image)))) == make(image)
    with pytest.raises(Refused, match="EBADMSG"):
        ldcache.merge(ldcache.path(make(image)), OURS)


def test_damaged_caches(ldcache: Tool, ldcache_sanitized: str) -> None:
    image = [
        Entry("libnvctest.so.1", "/lib/glibc-hwcaps/x86-64-v2/libnvctest.so.1", hwcap=EXTENSION),
        Entry("libnvctest.so.1", "/lib/glibc-hwcaps/x86-64-v3/libnvctest.so.1", hwcap=EXTENSION | 1),
        *(Entry(entry.soname, entry.path, entry.flags, 0, 0x020620) for entry in IMAGE),
        Entry("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    ]
    names = ("x86-64-v2", "x86-64-v3")
    caches = [ldcache.path(make(descending(image), each, names, b"tester")) for each in FORMATS]
    done = run(ldcache_sanitized, "mutate", "2000", "20261121", *caches, "/etc/ld.so.cache")
    merged, refused = map(int, done.stdout.split())
    assert merged > 600 and refused > 200


def test_time_grows_with_size_and_no_faster(ldcache: Tool, ldcache_fast: str) -> None:
    """8,000 entries cost about ten times what 800 cost, not a hundred times."""
    folder = "/usr/lib/x86_64-linux-gnu/a-directory-of-the-image"
    sonames = [f"libnvidia-{i}.so.1" for i in range(60)]
    add = tuple(Entry(soname, f"/usr/lib/x86_64-linux-gnu/{soname}") for soname in sonames)
    request = ldcache.request(add)

    def microseconds(count: int) -> int:
        names = [f"lib{i:x}-{i * 7919 % 1000}.so.{i % 40}" for i in range(count)]
        path = ldcache.path(make(descending([Entry(name, f"{folder}/{name}") for name in names])))
        times = []
        for _ in range(3):
            result, spent = run(ldcache_fast, "time", path, "5", *request).stdout.split()
            assert result == "0"
            times.append(int(spent))
        return min(times)

    assert microseconds(8_000) < 40 * max(1, microseconds(800))
