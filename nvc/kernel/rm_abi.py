"""Calls of the NVIDIA driver's resource manager, and their structures.

Numbers and structures are facts of open-gpu-kernel-modules, src/common/sdk/nvidia/inc, the same in 580.105.08 and
595.45.04; the file is named at each. An NvBool has one byte.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress

from nvc.base.errors import RmError
from nvc.kernel import address

#: nvstatuscodes.h, what these calls can answer.
STATUS = {
    0x00: "ok", 0x03: "busy, retry", 0x0F: "the GPU is lost", 0x10: "the GPU is being reset",
    0x11: "the GPU is not at full power", 0x17: "in use", 0x19: "the handle is taken",
    0x1A: "insufficient resources", 0x1B: "insufficient permissions", 0x1D: "invalid access type",
    0x1E: "invalid address", 0x1F: "invalid argument", 0x21: "invalid channel", 0x22: "invalid class",
    0x23: "invalid client", 0x24: "invalid command", 0x26: "invalid device", 0x29: "invalid flags",
    0x2E: "invalid limit", 0x2F: "invalid lock state", 0x31: "invalid object", 0x33: "invalid object handle",
    0x36: "invalid parent", 0x38: "invalid operation", 0x39: "invalid owner",
    0x3A: "invalid parameter structure", 0x3B: "invalid parameter", 0x3D: "invalid pointer",
    0x40: "invalid state", 0x51: "no memory", 0x55: "not ready", 0x56: "not supported",
    0x57: "object not found", 0x59: "operating system error", 0x5B: "out of range",
    0x60: "the channel had an error", 0x62: "a reset is required", 0x63: "state in use", 0x65: "timeout",
    0x66: "timeout, retry", 0x6D: "feature not enabled", 0x6E: "resource lost", 0xFFFF: "generic error",
}  # fmt: skip
#: Numbers of ioctls, and how to build one: nv_escape.h and nv-ioctl-numbers.h of nvidia/arch/nvalloc/unix/include.
_FREE, _CONTROL, _ALLOC, MAP_MEMORY = 0x29, 0x2A, 0x2B, 0x4E
_IOCTL = 3 << 30 | ord("F") << 8
#: class/cl*.h: NV01_ROOT_CLIENT, NV01_DEVICE_0, NV20_SUBDEVICE_0, NV_EVENT_BUFFER, NV01_MEMORY_DEVICELESS.
_ROOT, DEVICE, SUBDEVICE, EVENT_BUFFER, DEVICELESS = 0x41, 0x80, 0x2080, 0x90CD, 0x90CE
#: ctrl/ctrl*.h.
ATTACHED_IDS, ID_INFO, UUID_OF = 0x201, 0x205, 0x275
ATTACHED_BYTES = 128  # NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS
DISABLE_CHANNELS, GET_TIME, BIND = 0x2080110B, 0x20800403, 0x20801238
SET_TIMESLICE, GET_TIMESLICE = 0xA06C0103, 0xA06C0104
ENABLE_EVENTS, UPDATE_GET, FLUSH = 0x90CD0101, 0x90CD0102, 0x90CD0104

#: nvos.h: NVOS00, NVOS21, NVOS54; NVOS33 with a descriptor, of nv-unix-nvos-params-wrappers.h.
_FREE_CALL = struct.Struct("<4I")  # client, parent, handle, status
_ALLOC_CALL = struct.Struct("<4IQ2I")  # client, parent, handle, class, parameters, size, status
_CONTROL_CALL = struct.Struct("<4IQ2I")  # client, object, command, flags, parameters, size, status
MAP_CALL = struct.Struct("<4I3QIIi4x")  # client, device, memory, offset, length, address, status, flags, descriptor
#: class/cl0080.h, NV0080_ALLOC_PARAMETERS: the instance.
DEVICE_IS = struct.Struct("<I52x")
#: ctrl/ctrl0000/ctrl0000gpu.h: NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS, NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS.
ID_IS = struct.Struct("<I4xI20x")  # id, instance
UUID_IS = struct.Struct("<I4x256s4x")
#: ctrl/ctrl2080/ctrl2080fifo.h, NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS: disable, count, clients and channels.
#: Of either there is room for CHANNELS_MAX; {0} are named, and {1} bytes are left.
DISABLE_IS = "<B3xI16x{0}I{1}x{0}I{1}x"
CHANNELS_MAX = 64
#: nvos.h, NV_MEMORY_ALLOCATION_PARAMS: owner, attributes (cached; read-only for users), size.
MEMORY_IS = struct.Struct("<I20xII32xQ56x")
OWNER, CACHED, USER_READ_ONLY, MAP_READ_ONLY = 0x6E766364, 1 << 29, 1 << 22, 1
#: class/cl90cd.h, NV_EVENT_BUFFER_ALLOC_PARAMETERS: size and number of records, subdevice, memory of both.
BUFFER_IS = struct.Struct("<16xII28xI4xII4x")
#: ctrl/ctrl2080/ctrl2080gr.h, NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS: buffer, bytes of a record
#: behind its header, 1: no details, filter, 1: of all users, why not.
BIND_IS = struct.Struct("<IIIIB3xI")
#: class/cl90cd.h, NV_EVENT_BUFFER_HEADER: get, put, and how many records were dropped.
HEADER = struct.Struct("<II8xQ8x")
#: NV_EVENT_BUFFER_RECORD_HEADER there, with class/cl90cdfecs.h, NV_EVENT_BUFFER_FECS_RECORD_V2: type, tag,
#: sequence, process, time. A context and instances are between them.
RECORD = struct.Struct("<H6xBxH4xI4xQ")
RECORD_HEADER, FECS_V2 = 8, 2
HEADER_BYTES, RECORD_BYTES = 4096, 512 << 10
#: Of ENABLE_EVENTS and UPDATE_GET.
PAIR = struct.Struct("<II")


def words(status: int) -> str:
    """What a status says, for people."""
    return f"{STATUS.get(status, 'unknown')} (RM status {status:#x})"


def open_control(path: str) -> int:
    """A descriptor of the driver's control file, or of a GPU's. Raises RmError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RmError.of("open", path, error) from None


class Client:
    """A client of the resource manager, by the descriptor that it was made by; `path` is for messages."""

    def __init__(self, fd: int, handle: int, path: str) -> None:
        self.fd, self.handle, self.path = fd, handle, path

    @classmethod
    def made(cls, fd: int, path: str) -> Client:
        """A new one. Raises RmError."""
        client = cls(fd, 0, path)
        client.handle = client.make("make a client", 0, _ROOT)
        return client

    def call(
        self, step: str, number: int, layout: struct.Struct, status: int, *fields: int
    ) -> tuple[int, ...]:
        """The structure of an ioctl as the driver leaves it; RmError where that has not answered, or with another
        status than 0 in the field `status`; -1: whatever it is.
        """
        data = bytearray(layout.pack(*fields))
        self._send(step, number, data)
        answer = layout.unpack(data)
        if status >= 0 and answer[status]:
            raise RmError(step, self.path, words(answer[status]))
        return answer

    def _send(self, step: str, number: int, data: bytearray) -> None:
        for tries in range(9):
            try:
                fcntl.ioctl(self.fd, _IOCTL | len(data) << 16 | number, data)
                return
            except OSError as error:
                if error.errno not in (errno.EINTR, errno.EAGAIN) or tries == 8:
                    raise RmError.of(step, self.path, error) from None

    def control(self, step: str, target: int, command: int, parameters: bytearray) -> int:
        """The driver's status; the parameters are as it leaves them."""
        at, size = address(parameters), len(parameters)
        data = bytearray(_CONTROL_CALL.pack(self.handle, target, command, 0, at, size, 0))
        self._send(step, _CONTROL, data)
        return int.from_bytes(data[-4:], "little")

    def ask(self, step: str, target: int, command: int, parameters: bytes = b"") -> bytearray:
        """The parameters as the driver leaves them; RmError for a status that is not 0."""
        data = bytearray(parameters)
        if status := self.control(step, target, command, data):
            raise RmError(step, self.path, words(status))
        return data

    def make(self, step: str, handle: int, kind: int, parameters: bytes = b"", parent: int = 0) -> int:
        """Have the driver make an object, of the client itself if no parent is named; its handle."""
        data = bytearray(parameters)
        fields = (self.handle, parent or self.handle, handle, kind, address(data), len(data), 0)
        return self.call(step, _ALLOC, _ALLOC_CALL, 6, *fields)[2]

    def free(self, handle: int) -> None:
        """Whether it went well does not matter: what is left ends with the descriptor."""
        with suppress(RmError):
            self.call("free", _FREE, _FREE_CALL, -1, self.handle, self.handle, handle, 0)
