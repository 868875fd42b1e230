"""Fast reader of the few ELF facts that matter here, through bounded reads of a descriptor.

Little-endian files of 32 and 64 bits; big-endian ones cannot be this machine's and are refused. The oracle
of the tests is pyelftools, which needs 1.3 ms a file.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import struct

from nvc.base.errors import DetectionError
from nvc.base.value import Value

#: Bounds of what is read from one file. The largest driver library has 13 segments and 45 dynamic entries.
HEADERS_LIMIT = 64
DYNAMIC_LIMIT = 64 << 10
NOTES_LIMIT = 64 << 10
STRING_LIMIT = 256

#: e_machine by architecture, with the class (32 or 64 bits) that belongs to it.
MACHINES = {"x86_64": (62, 64), "i386": (3, 32), "aarch64": (183, 64), "arm": (40, 32)}

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_DT_NULL, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 0, 5, 10, 14
_NT_GNU_ABI_TAG = 1

_HEADER64 = struct.Struct("<HHIQQQIHHHHHH")
_HEADER32 = struct.Struct("<HHIIIIIHHHHHH")
_SEGMENT64 = struct.Struct("<IIQQQQQQ")  # type flags offset vaddr paddr filesz memsz align
_SEGMENT32 = struct.Struct("<IIIIIIII")  # type offset vaddr paddr filesz memsz flags align
_SECTION64 = struct.Struct("<IIQQQQIIQQ")
_SECTION32 = struct.Struct("<IIIIIIIIII")
_DYNAMIC64 = struct.Struct("<qQ")
_DYNAMIC32 = struct.Struct("<iI")
_NOTE = struct.Struct("<III")
_ABI = struct.Struct("<IIII")


class Elf(Value):
    """What an ELF file says of itself."""

    bits: int  # 32 or 64
    machine: int  # e_machine
    soname: str  # "" where it has none
    notes: tuple[tuple[str, int, bytes], ...]  # owner, type, content
    sections: tuple[int, int, int, int]  # offset, entry size, count, index of the names; for `section`

    def is_for(self, arch: str) -> bool:
        """Whether it runs on the architecture `arch` (a key of MACHINES)."""
        return MACHINES[arch] == (self.machine, self.bits)

    @property
    def linux_abi(self) -> tuple[int, int, int] | None:
        """The oldest kernel it is for, from the note .note.ABI-tag."""
        for owner, kind, content in self.notes:
            if owner == "GNU" and kind == _NT_GNU_ABI_TAG and len(content) >= _ABI.size:
                system, *version = _ABI.unpack_from(content)
                if system == 0:
                    return version[0], version[1], version[2]
        return None


def read_elf(fd: int, path: str = "") -> Elf:
    """The facts of the file `fd`, which must be a readable regular file; `path` is for messages.

    Raises DetectionError when it is not a sound little-endian ELF file, OSError when it cannot be read.
    """
    head = os.pread(fd, 4096, 0)
    if len(head) < 52 or head[:4] != b"\x7fELF":
        raise _bad(path, "not an ELF file")
    if head[4] not in (1, 2) or head[5] != 1 or head[6] != 1:
        raise _bad(path, "an ELF file of a foreign class, byte order or version")
    wide = head[4] == 2
    layout = _HEADER64 if wide else _HEADER32
    if len(head) < 16 + layout.size:
        raise _bad(path, "truncated ELF header")
    (_, machine, _, _, start, section_start, _, _, size, count, section_size, section_count, names) = (
        layout.unpack_from(head, 16)
    )
    segment = _SEGMENT64 if wide else _SEGMENT32
    if count > HEADERS_LIMIT or (count and size != segment.size):
        raise _bad(path, f"{count} program headers of {size} bytes")
    table = _at(fd, head, start, count * segment.size)
    if len(table) != count * segment.size:
        raise _bad(path, "program headers outside of the file")
    loads = []
    dynamic = None
    notes: list[tuple[str, int, bytes]] = []
    for fields in segment.iter_unpack(table):
        if wide:
            kind, _, offset, address, _, length, _, _ = fields
        else:
            kind, offset, address, _, length, _, _, _ = fields
        if kind == _PT_LOAD:
            loads.append((address, offset, length))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, length)
        elif kind == _PT_NOTE and length <= NOTES_LIMIT:
            notes += parse_notes(_at(fd, head, offset, length))
    soname = _soname(fd, head, path, wide, dynamic, loads) if dynamic is not None else ""
    sections = section_start, section_size, section_count, names
    return Elf(64 if wide else 32, machine, soname, tuple(notes), sections)


def _bad(path: str, cause: str) -> DetectionError:
    return DetectionError("read ELF header", path, cause)


def _at(fd: int, head: bytes, offset: int, size: int) -> bytes:
    """`size` bytes at `offset`, or fewer at the end of the file; mostly from what was read already."""
    if offset + size <= len(head):
        return head[offset : offset + size]
    if offset >= 1 << 62:  # beyond any off_t
        return b""
    return os.pread(fd, size, offset)


def _soname(
    fd: int, head: bytes, path: str, wide: bool, where: tuple[int, int], loads: list[tuple[int, int, int]]
) -> str:
    """The SONAME, or "". Addresses are mapped to offsets through the loaded segments, as the loader does."""
    offset, length = where
    if length > DYNAMIC_LIMIT:
        raise _bad(path, f"dynamic section of {length} bytes")
    layout = _DYNAMIC64 if wide else _DYNAMIC32
    table = _at(fd, head, offset, length)
    soname = strings = size = -1
    for tag, value in layout.iter_unpack(table[: len(table) // layout.size * layout.size]):
        if tag == _DT_NULL:
            break
        if tag == _DT_STRTAB:
            strings = value
        elif tag == _DT_STRSZ:
            size = value
        elif tag == _DT_SONAME:
            soname = value
    if soname < 0:
        return ""
    for address, file_offset, file_size in loads:
        if 0 <= strings - address < file_size:
            base = strings - address + file_offset
            break
    else:
        raise _bad(path, "dynamic strings outside of the file")
    if soname >= size:
        raise _bad(path, "the SONAME outside of the dynamic strings")
    raw = _at(fd, head, base + soname, min(STRING_LIMIT, size - soname))
    end = raw.find(b"\0")
    if end < 0:
        raise _bad(path, "a SONAME without end")
    return raw[:end].decode("utf-8", "replace")


def parse_notes(data: bytes) -> list[tuple[str, int, bytes]]:
    """Notes (owner, type, content) of a note segment or section; stops at the first that does not fit."""
    notes = []
    at = 0
    while at + _NOTE.size <= len(data):
        name_size, size, kind = _NOTE.unpack_from(data, at)
        name_at = at + _NOTE.size
        content_at = name_at + (name_size + 3) // 4 * 4
        at = content_at + (size + 3) // 4 * 4
        if content_at + size > len(data):
            break
        owner = data[name_at : name_at + name_size].rstrip(b"\0").decode("utf-8", "replace")
        notes.append((owner, kind, data[content_at : content_at + size]))
    return notes


def section(fd: int, elf: Elf, name: str, limit: int = NOTES_LIMIT) -> bytes | None:
    """Content of the section `name`, or None where there is no such section or it exceeds `limit` bytes.

    For notes that are not loaded, such as .note.cuda.fwd_compatibility. Raises OSError.
    """
    start, size, count, names_index = elf.sections
    layout = _SECTION64 if elf.bits == 64 else _SECTION32
    if not start or size != layout.size or count > 1024 or names_index >= count:
        return None
    table = _at(fd, b"", start, count * size)
    if len(table) != count * size:
        return None
    headers = list(layout.iter_unpack(table))
    _, _, _, _, names_at, names_size, *_ = headers[names_index]
    names = _at(fd, b"", names_at, min(names_size, NOTES_LIMIT))
    wanted = name.encode() + b"\0"
    for header in headers:
        if names.startswith(wanted, header[0]):
            if header[5] > limit:
                return None
            return _at(fd, b"", header[4], header[5])
    return None


def forward_compatibility(fd: int, elf: Elf) -> bytes | None:
    """The JSON payload of .note.cuda.fwd_compatibility of a libcuda, or None where it has none."""
    for owner, _, content in parse_notes(section(fd, elf, ".note.cuda.fwd_compatibility") or b""):
        if owner == "NVIDIA Corporation":
            return content.rstrip(b"\0")
    return None
