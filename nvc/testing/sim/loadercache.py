"""Writes a glibc loader cache (ld.so.cache) for a simulated driver root.

A header of 48 bytes, entries of 24, then strings, whose offsets count from the header. The combined format
puts a table of the old layout before it.
"""

from __future__ import annotations

import re
import struct

#: Flags of an entry: 3 is "ELF, libc6", the byte above it the architecture.
FLAGS = {"x86_64": 0x0303, "i386": 0x0003, "aarch64": 0x0A03, "arm": 0x0903}

_OLD_MAGIC = b"ld.so-1.7.0\0"
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_LITTLE_ENDIAN = 2


def name_key(name: str) -> tuple[tuple[bool, int], ...]:
    """Sorts in the loader's order of names: like strcmp, but runs of digits compare as numbers, after the rest."""
    parts = re.findall(r"\d+|\D", name)
    return tuple((True, int(part)) if part.isdigit() else (False, ord(part)) for part in parts)


def write(entries: list[tuple[str, str, str]], combined: bool = False) -> bytes:
    """The cache for `entries` of (name, path, architecture); of equal names the first given wins."""
    rows = [(name, path, FLAGS[arch]) for name, path, arch in entries]
    # The loader searches by halves and expects falling order; sorting is stable, so copies keep theirs.
    rows.sort(key=lambda row: (name_key(row[0]), row[2]), reverse=True)
    strings = bytearray()
    at: dict[str, int] = {}
    start = 48 + 24 * len(rows)
    for name, path, _ in rows:
        for text in (path, name):
            if text not in at:
                at[text] = start + len(strings)
                strings += text.encode() + b"\0"
    new = bytearray(struct.pack("<20sIIB19x", _NEW_MAGIC, len(rows), len(strings), _LITTLE_ENDIAN))
    for name, path, flags in rows:
        new += struct.pack("<iIIIQ", flags, at[name], at[path], 0, 0)
    new += strings
    if not combined:
        return bytes(new)
    old = bytearray(struct.pack("<12sI", _OLD_MAGIC, len(rows)))
    pad = -(16 + 12 * len(rows)) % 8
    for name, path, flags in rows:
        # Offsets of the old table count from its own end.
        old += struct.pack("<iII", flags, at[name] + pad, at[path] + pad)
    return bytes(old + bytes(pad) + new)
