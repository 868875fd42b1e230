"""Writes tiny ELF shared objects: they stand for driver libraries that the simulation has no behaviour for.

Each is a valid object that a loader can open: a SONAME, no symbols, and a note that says what it is. Loaders
need no sections, and there are none. Laid out by hand so that neither a compiler nor a 32-bit C library is needed.
"""

from __future__ import annotations

import functools
import struct

_MACHINES = {"x86_64": (62, True), "aarch64": (183, True), "i386": (3, False), "arm": (40, False)}

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
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


def _segment(wide: bool, kind: int, flags: int, offset: int, size: int, align: int) -> bytes:
    if wide:
        return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, align)
    return struct.pack("<IIIIIIII", kind, offset, offset, offset, size, size, flags, align)


def _header(wide: bool, machine: int, segments: int) -> bytes:
    ident = b"\x7fELF" + bytes((2 if wide else 1, 1, 1)) + bytes(9)
    flags = _EF_ARM_ABI5_HARD_FLOAT if machine == 40 else 0
    header, segment = (64, 56) if wide else (52, 32)
    shape = "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH"
    return ident + struct.pack(shape, 3, machine, 1, 0, header, 0, flags, header, segment, segments, 0, 0, 0)


@functools.cache
def shared_object(soname: str, arch: str, abi_note: bool = False) -> bytes:
    """A shared object for `arch` (x86_64, aarch64, i386 or arm) with this SONAME.

    `abi_note`: with the note for Linux 2.3.99 that the driver's libnvidia-tls has.
    """
    machine, wide = _MACHINES[arch]
    notes = [_SIM_NOTE, _ABI_NOTE] if abi_note else [_SIM_NOTE]
    segments = 2 + len(notes)
    data = bytearray((64 + 56 * segments) if wide else (52 + 32 * segments))
    word, symbol = (8, 24) if wide else (4, 16)

    def add(content: bytes, align: int) -> int:
        data.extend(bytes(-len(data) % align))
        data.extend(content)
        return len(data) - len(content)

    # All is in one segment at 0, so offsets are addresses.
    notes_at = [add(note, 4) for note in notes]
    hash_at = add(struct.pack("<IIII", 1, 1, 0, 0), 8)
    symbols_at = add(bytes(symbol), 8)
    strings = b"\0libc.so.6\0" + soname.encode() + b"\0"
    strings_at = add(strings, 1)
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
    dynamic_at = add(dynamic, word)

    # Writable: the loader notes addresses in the dynamic section of objects of some architectures.
    headers = _header(wide, machine, segments)
    headers += _segment(wide, _PT_LOAD, 6, 0, len(data), 0x10000 if arch == "aarch64" else 0x1000)
    headers += _segment(wide, _PT_DYNAMIC, 6, dynamic_at, len(dynamic), word)
    for at, note in zip(notes_at, notes):
        headers += _segment(wide, _PT_NOTE, 4, at, len(note), 4)
    data[: len(headers)] = headers
    return bytes(data)
