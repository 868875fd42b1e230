"""Writes tiny ELF shared objects: they stand for driver libraries that the simulation has no behaviour for.

Each is a valid object that a loader can open: a SONAME, no symbols, and a note that says what it is.
Laid out by hand so that neither a compiler nor a 32-bit C library is needed.
"""

from __future__ import annotations

import functools
import struct

_MACHINES = {"x86_64": (62, True), "aarch64": (183, True), "i386": (3, False), "arm": (40, False)}

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_SHT_STRTAB, _SHT_HASH, _SHT_DYNAMIC, _SHT_NOTE, _SHT_DYNSYM = 3, 5, 6, 7, 11
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB = 0, 1, 4, 5
_DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 6, 10, 11, 14
_EF_ARM_ABI5_HARD_FLOAT = 0x05000400


def _note(owner: bytes, kind: int, content: bytes) -> bytes:
    def padded(data: bytes) -> bytes:
        return data + b"\0" * (-len(data) % 4)

    return struct.pack("<III", len(owner), len(content), kind) + padded(owner) + padded(content)


#: "GNU", type 1: the oldest Linux that the object runs on. libnvidia-tls has 2.3.99, its older twin had not.
_ABI_NOTE = _note(b"GNU\0", 1, struct.pack("<IIII", 0, 2, 3, 99))
_SIM_NOTE = _note(b"nvc\0", 1, b"file of a simulated NVIDIA driver")


class _Layout:
    """The contents of one file, appended in order; offsets are addresses, as all is in one segment at 0."""

    def __init__(self, headers: int) -> None:
        self.data = bytearray(headers)

    def add(self, content: bytes, align: int) -> int:
        self.data += b"\0" * (-len(self.data) % align)
        offset = len(self.data)
        self.data += content
        return offset


def _segment(wide: bool, kind: int, flags: int, offset: int, size: int, align: int) -> bytes:
    if wide:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, align)
    return struct.pack("<IIIIIIII", kind, offset, offset, offset, size, size, flags, align)


def _section(
    wide: bool, name: int, kind: int, flags: int, place: tuple[int, int], link: int, entry: int
) -> bytes:
    offset, size = place
    address = offset if flags else 0
    align = 8 if wide and kind != _SHT_NOTE else 4
    first_global = int(kind == _SHT_DYNSYM)
    shape = "<IIQQQQIIQQ" if wide else "<IIIIIIIIII"
    return struct.pack(shape, name, kind, flags, address, offset, size, link, first_global, align, entry)


def _header(wide: bool, machine: int, segments: int, sections_at: int, sections: int) -> bytes:
    ident = b"\x7fELF" + bytes((2 if wide else 1, 1, 1)) + bytes(9)
    flags = _EF_ARM_ABI5_HARD_FLOAT if machine == 40 else 0
    header, segment, section = (64, 56, 64) if wide else (52, 32, 40)
    counts = (header, segment, segments, section, sections, sections - 1)
    shape = "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH"
    return ident + struct.pack(shape, 3, machine, 1, 0, header, sections_at, flags, *counts)


@functools.cache
def shared_object(soname: str, arch: str, abi_note: bool = False) -> bytes:
    """A shared object for `arch` (x86_64, aarch64, i386 or arm) with this SONAME.

    `abi_note`: with the `.note.ABI-tag` for Linux 2.3.99 that the driver's libnvidia-tls has.
    """
    machine, wide = _MACHINES[arch]
    segments = 4 if abi_note else 3
    layout = _Layout((64 + 56 * segments) if wide else (52 + 32 * segments))
    strings = b"\0libc.so.6\0" + soname.encode() + b"\0"
    word = 8 if wide else 4
    symbol = 24 if wide else 16
    page = 0x10000 if arch == "aarch64" else 0x1000

    note_at = layout.add(_SIM_NOTE, 4)
    abi_at = layout.add(_ABI_NOTE, 4) if abi_note else 0
    hash_at = layout.add(struct.pack("<IIII", 1, 1, 0, 0), 8)
    symbols_at = layout.add(bytes(symbol), 8)
    strings_at = layout.add(strings, 1)
    entries = (
        (_DT_NEEDED, 1),  # by which ldconfig tells what C library a 32-bit object is for
        (_DT_SONAME, 11),
        (_DT_HASH, hash_at),
        (_DT_STRTAB, strings_at),
        (_DT_SYMTAB, symbols_at),
        (_DT_STRSZ, len(strings)),
        (_DT_SYMENT, symbol),
        (_DT_NULL, 0),
    )
    dynamic = b"".join(struct.pack("<qQ" if wide else "<iI", *entry) for entry in entries)
    dynamic_at = layout.add(dynamic, word)
    loaded = len(layout.data)

    names = b"\0.note.nvc\0.note.ABI-tag\0.hash\0.dynsym\0.dynstr\0.dynamic\0.shstrtab\0"
    names_at = layout.add(names, 1)

    def section(
        name: bytes, kind: int, flags: int, place: tuple[int, int], link: int = 0, entry: int = 0
    ) -> bytes:
        return _section(wide, names.index(b"\0" + name + b"\0") + 1, kind, flags, place, link, entry)

    first = 3 if abi_note else 2  # index of .hash
    table = [bytes(64 if wide else 40), section(b".note.nvc", _SHT_NOTE, 2, (note_at, len(_SIM_NOTE)))]
    if abi_note:
        table.append(section(b".note.ABI-tag", _SHT_NOTE, 2, (abi_at, len(_ABI_NOTE))))
    table += [
        section(b".hash", _SHT_HASH, 2, (hash_at, 16), first + 1, 4),
        section(b".dynsym", _SHT_DYNSYM, 2, (symbols_at, symbol), first + 2, symbol),
        section(b".dynstr", _SHT_STRTAB, 2, (strings_at, len(strings))),
        section(b".dynamic", _SHT_DYNAMIC, 3, (dynamic_at, len(dynamic)), first + 2, 2 * word),
        section(b".shstrtab", _SHT_STRTAB, 0, (names_at, len(names))),
    ]
    sections_at = layout.add(b"".join(table), 8)

    headers = _header(wide, machine, segments, sections_at, len(table))
    # Writable: the loader notes addresses in the dynamic section of objects of some architectures.
    headers += _segment(wide, _PT_LOAD, 6, 0, loaded, page)
    headers += _segment(wide, _PT_DYNAMIC, 6, dynamic_at, len(dynamic), word)
    headers += _segment(wide, _PT_NOTE, 4, note_at, len(_SIM_NOTE), 4)
    if abi_note:
        headers += _segment(wide, _PT_NOTE, 4, abi_at, len(_ABI_NOTE), 4)
    layout.data[: len(headers)] = headers
    return bytes(layout.data)
