"""Calls of the driver's resource manager (RM) as a program makes them: structures of nvos.h, cl90cd.h, ctrl*.h."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Sequence

from nvc.base.files import closing
from nvc.base.value import Value

FREE, CONTROL, ALLOC, MAP = 0x29, 0x2A, 0x2B, 0x4E
CLIENT, DEVICE, SUBDEVICE, GROUP, CHANNEL, EVENT_BUFFER, MEMORY = (
    0x41,
    0x80,
    0x2080,
    0xA06C,
    0xC86F,
    0x90CD,
    0x90CE,
)
GRAPHICS, COPY = 1, 9
TIME, DISABLE, BIND = 0x20800403, 0x2080110B, 0x20801238
ENABLE, GET, FLUSH = 0x90CD0101, 0x90CD0102, 0x90CD0104
SET_TIMESLICE, GET_TIMESLICE = 0xA06C0103, 0xA06C0104
START, END = 6, 7
RECORDS = 4096


def call(fd: int, number: int, data: bytes | bytearray) -> bytearray:
    """The ioctl: the structure as the driver leaves it. Raises OSError."""
    out = bytearray(data)
    fcntl.ioctl(fd, 3 << 30 | len(out) << 16 | ord("F") << 8 | number, out)
    return out


class Failed(Exception):
    """A call answered a status that is not 0."""

    def __init__(self, status: int) -> None:
        super().__init__(f"RM status {status:#x}")
        self.status = status


def check(status: int) -> None:
    if status:
        raise Failed(status)


class Record(Value):
    """A line of the switch log."""

    kind: int
    time: int
    pid: int
    context: int
    sequence: int


class Client:
    """An open file of the driver, and a client in it. Raises Failed, OSError."""

    def __init__(self, path: str, fd: int = -1, handle: int = 0) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC) if fd < 0 else fd
        self.handle = handle
        if not handle:
            self.handle = self.alloc(0, CLIENT)

    def alloc(
        self, parent: int, kind: int, parameters: bytes = b"", handle: int = 0, wide: bool = False
    ) -> int:
        """A new object's handle."""
        data = ctypes.create_string_buffer(parameters, max(len(parameters), 1))
        at = ctypes.addressof(data) if parameters else 0
        words = struct.pack("<IIIIQ", self.handle if kind != CLIENT else 0, parent, handle, kind, at)
        rest = (
            struct.pack("<QIIII", 0, len(parameters), 0, 0, 0)
            if wide
            else struct.pack("<II", len(parameters), 0)
        )
        out = call(self.fd, ALLOC, words + rest)
        check(struct.unpack_from("<I", out, 40 if wide else 28)[0])
        return int(struct.unpack_from("<I", out, 8)[0])

    def control(self, target: int, command: int, parameters: bytes = b"") -> bytes:
        """The parameters as the driver leaves them."""
        status, out = self.try_control(target, command, parameters)
        check(status)
        return out

    def try_control(self, target: int, command: int, parameters: bytes = b"") -> tuple[int, bytes]:
        data = ctypes.create_string_buffer(parameters, max(len(parameters), 1))
        at = ctypes.addressof(data) if parameters else 0
        words = struct.pack("<IIIIQII", self.handle, target, command, 0, at, len(parameters), 0)
        out = call(self.fd, CONTROL, words)
        return struct.unpack_from("<I", out, 28)[0], data.raw[: len(parameters)]

    def free(self, handle: int, parent: int = 0) -> None:
        check(
            struct.unpack_from(
                "<I", call(self.fd, FREE, struct.pack("<IIII", self.handle, parent, handle, 0)), 12
            )[0]
        )

    def device(self, instance: int = 0) -> int:
        return self.alloc(self.handle, DEVICE, struct.pack("<I52x", instance))

    def group(self, device: int, engine: int = GRAPHICS) -> int:
        return self.alloc(device, GROUP, struct.pack("<IIIII", 0, 0, 0, engine, 0))

    def timeslice(self, group: int) -> int:
        return int(struct.unpack("<Q", self.control(group, GET_TIMESLICE, bytes(8)))[0])

    def set_timeslice(self, group: int, us: int) -> None:
        self.control(group, SET_TIMESLICE, struct.pack("<Q", us))

    def disable(self, subdevice: int, channels: Sequence[tuple[int, int]], on: bool = True) -> int:
        """Stop or start channels, by client and handle. Returns the status."""
        lists = [[pair[which] for pair in channels] + [0] * (64 - len(channels)) for which in (0, 1)]
        data = struct.pack("<B3xIBB6xQ128I", on, len(channels), 0, 0, 0, *lists[0], *lists[1])
        return self.try_control(subdevice, DISABLE, data)[0]

    def map(self, memory: int, size: int, flags: int = 1) -> mmap.mmap:
        """What the driver writes, to be read: by a descriptor of its own."""
        with closing(os.open(self.path, os.O_RDWR | os.O_CLOEXEC)) as fd:
            words = struct.pack(
                "<IIIIQQQIIiI", self.handle, self.handle, memory, 0, 0, size, 0, 0, flags, fd, 0
            )
            check(struct.unpack_from("<I", call(self.fd, MAP, words), 40)[0])
            return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)

    def memory(self, size: int) -> int:
        # PROTECTION_USER read-only, COHERENCY cached
        return self.alloc(self.handle, MEMORY, struct.pack("<24xII16xQQQ48x", 1 << 29, 1 << 22, 0, 0, size))

    def close(self) -> None:
        os.close(self.fd)


class Log:
    """An event buffer with the switches of one GPU."""

    def __init__(self, client: Client, subdevice: int, records: int = RECORDS) -> None:
        self.client, self.count = client, records
        size = records * 32
        header, memory = client.memory(4096), client.memory(size)
        self.header, self.records = client.map(header, 4096), client.map(memory, size)
        words = (0, 0, 32, records, 0, 0, 0, 0, 0, subdevice, 0, header, memory, 0)
        self.buffer = client.alloc(client.handle, EVENT_BUFFER, struct.pack("<QQIIQIIQIIIIII", *words))
        client.control(self.buffer, ENABLE, struct.pack("<II", 1, 1))
        self.bind(subdevice)
        self.get = 0

    def bind(self, subdevice: int) -> None:
        self.client.control(subdevice, BIND, struct.pack("<IIIIB3xI", self.buffer, 24, 1, 0, 1, 0))

    def dropped(self) -> int:
        return int(struct.unpack_from("<Q", self.header, 16)[0])

    def look(self) -> list[Record]:
        """What is there, without a flush."""
        put = struct.unpack_from("<I", self.header, 4)[0]
        found = []
        while self.get != put:
            kind, tag, sequence, context, pid, time = struct.unpack_from(
                "<H6xBxHII4xQ", self.records, self.get * 32
            )
            assert kind == 2
            found.append(Record(tag, time, pid, context, sequence))
            self.get = (self.get + 1) % self.count
        self.client.control(self.buffer, GET, struct.pack("<II", self.get, 0))
        return found

    def read(self) -> list[Record]:
        """All up to now."""
        self.client.control(self.buffer, FLUSH)
        return self.look()


def had(records: Sequence[Record], begin: int, end: int) -> dict[int, int]:
    """Nanoseconds that each process had the GPU of what lies between these times."""
    found: dict[int, int] = {}
    since: dict[int, int] = {}
    for record in records:
        if record.kind == START:
            since[record.pid] = record.time
        elif record.kind == END:
            start = max(since.pop(record.pid, begin), begin)
            found[record.pid] = found.get(record.pid, 0) + max(0, min(record.time, end) - start)
    for pid, start in since.items():
        found[pid] = found.get(pid, 0) + max(0, end - max(start, begin))
    return found
