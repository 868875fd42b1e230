"""Reader of ld.so.cache in each of its three layouts: bytes in, entries out. Callers interpret the flags.

old       `ld.so-1.7.0`, entries of 12 bytes, then strings; offsets count from the end of the entries
combined  an old cache, padding, and a new one, which the loader reads
new       `glibc-ld.so.cache1.1`, entries of 24 bytes, strings, extensions; offsets count from its start
"""

from __future__ import annotations

import struct

from nvc.base.errors import DetectionError
from nvc.base.types import Iterator

#: The largest cache that is read, bytes. A desktop's has 200 KiB, a big image's 2 MiB.
CACHE_LIMIT = 32 << 20
#: The longest name or path in one.
STRING_LIMIT = 4096

OLD_MAGIC = b"ld.so-1.7.0"
NEW_MAGIC = b"glibc-ld.so.cache1.1"

_OLD_HEADER = struct.Struct("<11sxI")
_OLD_ENTRY = struct.Struct("<iII")
_NEW_HEADER = struct.Struct("<20sIIB3xI12x")
_NEW_ENTRY = struct.Struct("<iIIIQ")

#: Low byte of an entry's flags: the kind of library, here ELF and ELF for glibc 2.
TYPE_MASK = 0x00FF
TYPES = (1, 3)
#: High byte of an entry's flags: the architecture.
ARCH_MASK = 0xFF00
ARCH_FLAGS = {"x86_64": 0x0300, "i386": 0x0000, "aarch64": 0x0A00, "arm": 0x0900}

# Byte order as written by glibc since 2.33, in two bits of a byte: 2 is little-endian, 3 big. Before it was all 0.
_ORDER_MASK = 3
_LITTLE_ENDIAN = 2


def parse_cache(data: bytes, prefixes: tuple[bytes, ...] = ()) -> list[tuple[int, str, str]]:
    """Entries (flags, name, path) in the order in which the loader reads them.

    With `prefixes`, only names that begin with one of them. Raises DetectionError if `data` is cut short, has the
    other byte order, or an entry that points outside of it.
    """
    if len(data) > CACHE_LIMIT:
        raise _malformed(f"larger than {CACHE_LIMIT} bytes")
    if data.startswith(NEW_MAGIC):
        return _parse_new(data, 0, prefixes)
    if not data.startswith(OLD_MAGIC):
        raise _malformed("unsupported file format")
    if len(data) < _OLD_HEADER.size:
        raise _malformed("truncated header")
    count = _OLD_HEADER.unpack_from(data)[1]
    end = _OLD_HEADER.size + count * _OLD_ENTRY.size
    if end > len(data):
        raise _malformed(f"{count} entries do not fit")
    # Aligned as the new header's 64-bit field demands: to 8 bytes, but 4 on 32-bit x86.
    for start in (-(-end // 8) * 8, end):
        if data.startswith(NEW_MAGIC, start):
            return _parse_new(data, start, prefixes)
    return _strings(data, _OLD_ENTRY.iter_unpack(data[_OLD_HEADER.size : end]), end, prefixes)


def _parse_new(data: bytes, start: int, prefixes: tuple[bytes, ...]) -> list[tuple[int, str, str]]:
    if len(data) - start < _NEW_HEADER.size:
        raise _malformed("truncated header")
    _, count, strings, order, _ = _NEW_HEADER.unpack_from(data, start)
    first = start + _NEW_HEADER.size
    end = first + count * _NEW_ENTRY.size
    if end + strings > len(data):
        raise _malformed(f"{count} entries and {strings} bytes of names do not fit")
    if order and order & _ORDER_MASK != _LITTLE_ENDIAN:
        raise _malformed("written for the other byte order")
    return _strings(data, _NEW_ENTRY.iter_unpack(data[first:end]), start, prefixes)


def _strings(
    data: bytes, entries: Iterator[tuple[int, ...]], base: int, prefixes: tuple[bytes, ...]
) -> list[tuple[int, str, str]]:
    found = []
    # Strings may overlap, so many entries could name one long string: the total length is bounded.
    room = 8 * len(data) + 65536
    for flags, name, path, *_ in entries:
        name += base
        if prefixes and not data.startswith(prefixes, name):
            continue
        path += base
        name_end = data.find(b"\0", name, name + STRING_LIMIT)
        path_end = data.find(b"\0", path, path + STRING_LIMIT)
        if name_end < 0 or path_end < 0:
            raise _malformed("an entry points outside")
        room -= name_end - name + path_end - path
        if room < 0:
            raise _malformed("more names than it has room for")
        # To the loader these are bytes; what is not UTF-8 survives as surrogates.
        found.append(
            (
                flags,
                data[name:name_end].decode("utf-8", "surrogateescape"),
                data[path:path_end].decode("utf-8", "surrogateescape"),
            )
        )
    return found


def _malformed(cause: str) -> DetectionError:
    return DetectionError("read loader cache", "", cause, "run ldconfig in the driver root")
