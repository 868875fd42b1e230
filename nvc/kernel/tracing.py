"""BPF programs on raw tracepoints: loading, maps, the ring buffer, and what is pinned in a file system bpf.

Imported by `nvc.kernel.tracer` alone. Every function raises OSError; descriptors are close-on-exec.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct

from nvc.base.value import Value
from nvc.kernel import address, bpf, checked, fence, lib

_LOG_BYTES = 1 << 20
#: linux/bpf.h: enum bpf_cmd, and parts of union bpf_attr.
_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _DUMP = 0, 1, 2, 3, 24
_PROG_LOAD, _PIN, _PINNED, _TRACEPOINT = 5, 6, 7, 17
_SHAPE = struct.Struct("<5I8x15sx")  # of a new map, and its name
_ENTRY = struct.Struct("<I4xQQ8x")  # map, key, value
_BATCH = struct.Struct("<QQQQII16x")  # position before and after, keys, values, how many, map
_PROGRAM = struct.Struct("<IIQQIIQ8x15sx")  # type, instructions, licence, log, name
_NAMED = struct.Struct("<QI4x")  # name, descriptor
_RAW_TRACEPOINT = 17  # enum bpf_prog_type
_INSTRUCTION = 8
_BUSY, _DISCARDED, _RING_HEADER = 1 << 31, 1 << 30, 8  # of a record in a ring buffer
#: src_reg of a 64-bit load whose constant is a map's descriptor (linux/bpf.h: BPF_PSEUDO_MAP_FD).
_MAP_FD = 1


class MapShape(Value):
    """A map as bpf(2) makes it; `type` is one of enum bpf_map_type."""

    name: str
    type: int
    key_size: int
    value_size: int
    entries: int
    flags: int


class Program(Value):
    """`maps`: (number of an instruction, index of the map whose descriptor it loads)."""

    name: str
    tracepoint: str
    code: bytes
    maps: tuple[tuple[int, int], ...]


class Flat(Value):
    """What native/tracer/build.py writes."""

    license: str
    maps: tuple[MapShape, ...]
    programs: tuple[Program, ...]


def parse(data: bytes) -> Flat:
    """Raises ValueError for bytes that build.py has not written whole."""
    line, newline, code = data.partition(b"\n")
    try:
        head = json.loads(line)
        maps = tuple(MapShape(**{name: each[name] for name in MapShape._fields}) for each in head["maps"])
        programs = []
        for each in head["programs"]:
            start, size = int(each["start"]), int(each["size"])
            own = code[start : start + size]
            uses = tuple((int(place), int(index)) for place, index in each["maps"])
            whole = newline and start >= 0 and size > 0 and len(own) == size and size % _INSTRUCTION == 0
            if not whole or any(
                not (0 <= place < size // _INSTRUCTION and 0 <= index < len(maps)) for place, index in uses
            ):
                raise ValueError("is not whole")
            programs.append(Program(str(each["name"]), str(each["tracepoint"]), own, uses))
        return Flat(str(head["license"]), maps, tuple(programs))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is not of this format: {type(error).__name__}: {error}") from None


class Map:
    """A map by its descriptor, which this object owns."""

    def __init__(self, fd: int, shape: MapShape) -> None:
        self.fd = fd
        self.shape = shape

    @classmethod
    def create(cls, shape: MapShape) -> Map:
        """Make an empty map."""
        sizes = (shape.type, shape.key_size, shape.value_size, shape.entries, shape.flags)
        made = bpf.command(_MAP_CREATE, bytearray(_SHAPE.pack(*sizes, shape.name.encode())))
        return cls(checked(made, shape.name), shape)

    def _call(self, number: int, key: bytes, value: bytes | bytearray) -> int:
        return bpf.command(number, bytearray(_ENTRY.pack(self.fd, address(key), address(value))))

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        value = bytearray(self.shape.value_size)
        result = self._call(_LOOKUP, key, value)
        if result == -errno.ENOENT:
            return None
        checked(result, self.shape.name)
        return bytes(value)

    def put(self, key: bytes, value: bytes) -> None:
        checked(self._call(_UPDATE, key, value), self.shape.name)

    def remove(self, key: bytes) -> None:
        """Nothing happens when it is not there."""
        result = self._call(_DELETE, key, b"")
        if result != -errno.ENOENT:
            checked(result, self.shape.name)

    def dump(self) -> list[tuple[bytes, bytes]]:
        """All entries of a hash map. Those that change meanwhile may be missing, or appear twice."""
        shape, room = self.shape, self.shape.entries + 1024
        key, value = shape.key_size, shape.value_size
        keys, values, position, total = bytearray(key * room), bytearray(value * room), bytearray(8), 0
        all_keys, all_values, next_at = address(keys), address(values), address(position)
        while total < room:
            places = (all_keys + total * key, all_values + total * value)
            asked = bytearray(_BATCH.pack(next_at if total else 0, next_at, *places, room - total, self.fd))
            result = bpf.command(_DUMP, asked)
            if result != -errno.ENOENT:
                checked(result, shape.name)  # ENOSPC: a bucket has more entries than there is room for
            count = _BATCH.unpack(asked)[4]
            total += count
            if result or not count:
                break
        return [
            (
                bytes(keys[place * key : (place + 1) * key]),
                bytes(values[place * value : (place + 1) * value]),
            )
            for place in range(total)
        ]


class Ring:
    """The reader's side of a ring buffer map, whose descriptor is readable when there is a record.

    kernel/bpf/ringbuf.c: a page with the reader's position, one with the writer's, and the data twice.
    """

    ROOM = 256

    def __init__(self, ring: Map, record: int) -> None:
        self._record, self._size = record, ring.shape.entries
        page, whole = mmap.PAGESIZE, mmap.PAGESIZE + 2 * self._size
        self._data = mmap.mmap(ring.fd, whole, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._own = mmap.mmap(ring.fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # Items of these are read and written whole.
        self._consumed, self._produced = memoryview(self._own).cast("Q"), memoryview(self._data).cast("Q")
        self._words = memoryview(self._data).cast("I")

    def read(self) -> list[bytes]:
        """At most 256 records, in order. Those of another size are skipped."""
        at, end, places = self._consumed[0], self._produced[0], list[int]()
        if end - at > self._size:
            raise OSError(errno.EBADMSG, "is not whole", "ring buffer")
        fence()
        while at < end and len(places) < self.ROOM:
            place = mmap.PAGESIZE + at % self._size
            header = self._words[place // 4]
            length = header & ~_DISCARDED
            if header & _BUSY:
                break
            if length > end - at:
                raise OSError(errno.EBADMSG, "is not whole", "ring buffer")
            if header == self._record:
                places.append(place + _RING_HEADER)
            at += (length + _RING_HEADER + 7) & ~7
        fence()
        found = [self._data[place : place + self._record] for place in places]
        fence()
        self._consumed[0] = at
        return found

    def close(self) -> None:
        """Nothing is read any more."""
        for view in (self._consumed, self._produced, self._words):
            view.release()
        self._data.close()
        self._own.close()


def load(program: Program, license_text: str, maps: list[Map]) -> int:
    """Load a program on a raw tracepoint; its descriptor. A refusal quotes the verifier's last words."""
    code = bytearray(program.code)
    for place, index in program.maps:
        at = place * _INSTRUCTION
        code[at + 1] = code[at + 1] & 0x0F | _MAP_FD << 4
        struct.pack_into("<i", code, at + 4, maps[index].fd)
    name, terms = program.name.encode(), license_text.encode() + b"\0"
    whole = (_RAW_TRACEPOINT, len(code) // _INSTRUCTION, address(code), address(terms))
    result = bpf.command(_PROG_LOAD, bytearray(_PROGRAM.pack(*whole, 0, 0, 0, name)))
    if result < 0:
        log = bytearray(_LOG_BYTES)
        bpf.command(_PROG_LOAD, bytearray(_PROGRAM.pack(*whole, 1, len(log), address(log), name)))
        raise bpf.refused(result, log, program.name)
    return result


def _named(number: int, name: str, descriptor: int = 0) -> int:
    at = os.fsencode(name) + b"\0"
    return checked(bpf.command(number, bytearray(_NAMED.pack(address(at), descriptor))), name)


def attach(program: int, tracepoint: str) -> int:
    """A link that holds the program on the raw tracepoint."""
    return _named(_TRACEPOINT, tracepoint, program)


def pin(descriptor: int, path: str) -> None:
    """Give a map, program or link a name in a file system bpf, by which it outlives its descriptors."""
    _named(_PIN, path, descriptor)


def pinned(path: str) -> int:
    """A descriptor of what is pinned there; OSError ENOENT when nothing is."""
    return _named(_PINNED, path)


def is_bpffs(directory: str) -> bool:
    """Whether a directory is on a file system bpf."""
    return bool(checked(lib.nvc_bpf_is_mounted(os.fsencode(directory)), directory))


def mount_bpffs(directory: str) -> None:
    """Mount a file system bpf of its own there (mount(2)), for root alone."""
    checked(lib.nvc_bpf_mount(os.fsencode(directory)), directory)
