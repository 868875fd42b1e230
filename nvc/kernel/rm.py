"""The NVIDIA driver's resource manager (RM), as far as keeping time needs it: native/core/rm/rm.h.

Calls return the driver's status, 0 for success; `STATUS` has words for it. What cannot go on raises RmError, and so
does an errno of the kernel always: the descriptor is not the driver's, or the driver is gone.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from typing import NamedTuple

from nvc.base.errors import RmError
from nvc.base.files import lines_of
from nvc.base.types import Any, Sequence
from nvc.base.value import Value
from nvc.kernel import ffi, lib, processes, strerror

START, END, RESET = 1, 2, 3

#: nvstatuscodes.h, what these calls can answer.
STATUS = {
    0x00: "ok",
    0x03: "busy, retry",
    0x0F: "the GPU is lost",
    0x10: "the GPU is being reset",
    0x11: "the GPU is not at full power",
    0x17: "in use",
    0x19: "the handle is taken",
    0x1A: "insufficient resources",
    0x1B: "insufficient permissions",
    0x1D: "invalid access type",
    0x1E: "invalid address",
    0x1F: "invalid argument",
    0x21: "invalid channel",
    0x22: "invalid class",
    0x23: "invalid client",
    0x24: "invalid command",
    0x26: "invalid device",
    0x29: "invalid flags",
    0x2E: "invalid limit",
    0x2F: "invalid lock state",
    0x31: "invalid object",
    0x33: "invalid object handle",
    0x36: "invalid parent",
    0x38: "invalid operation",
    0x39: "invalid owner",
    0x3A: "invalid parameter structure",
    0x3B: "invalid parameter",
    0x3D: "invalid pointer",
    0x40: "invalid state",
    0x51: "no memory",
    0x55: "not ready",
    0x56: "not supported",
    0x57: "object not found",
    0x59: "operating system error",
    0x5B: "out of range",
    0x60: "the channel had an error",
    0x62: "a reset is required",
    0x63: "state in use",
    0x65: "timeout",
    0x66: "timeout, retry",
    0x6D: "feature not enabled",
    0x6E: "resource lost",
    0xFFFF: "generic error",
}
#: NV2080_CTRL_GR_FECS_BIND_REASON_CODE_*.
_REASONS = {
    1: "the GPU is too old",
    2: "not enabled on the GPU",
    3: "not enabled",
    4: "CAP_SYS_ADMIN of the first user namespace is needed",
    5: "a capability of the driver is needed",
}
_LOG_STEPS = {
    lib.NVC_RM_LOG_HEADER: "allocate the log's header",
    lib.NVC_RM_LOG_RECORDS: "allocate the log's records",
    lib.NVC_RM_LOG_MAP_HEADER: "map the log's header",
    lib.NVC_RM_LOG_MAP_RECORDS: "map the log's records",
    lib.NVC_RM_LOG_BUFFER: "make the event buffer",
    lib.NVC_RM_LOG_ENABLE: "enable the event buffer",
    lib.NVC_RM_LOG_BIND: "bind the switch log",
}
_RECORD = struct.Struct("<QIIII")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DRIVER = "/proc/driver/nvidia"
#: The first handle of ours, and how many each device has. A client's handles are its own.
_HANDLES, _EACH, _SUBDEVICE, _LOG = 0xCAF00000, 0x20, 1, 0x10


def words(status: int) -> str:
    """What a status says, for people."""
    return f"{STATUS.get(status, 'unknown')} (RM status {status:#x})"


def _checked(result: int, step: str, path: str) -> int:
    """The driver's status; RmError for an errno."""
    if result < 0:
        raise RmError(step, path, strerror(-result))
    return result


def _done(result: int, step: str, path: str) -> None:
    """RmError for anything but success."""
    if _checked(result, step, path):
        raise RmError(step, path, words(result))


class RmDevice(Value):
    """A GPU. `instance` is the device instance of RM; `minor` of /dev/nvidiaN, -1 where the driver does not say."""

    instance: int
    gpu_id: int
    uuid: str
    minor: int


class Record(NamedTuple):
    """A change of contexts. `time_ns` is the GPU's timer; 0 where the firmware gave no time."""

    time_ns: int
    kind: int  # START, END, RESET
    pid: int  # of the host
    context: int
    gpu_instance: int
    compute_instance: int


class SwitchLog:
    """Who had the graphics and compute engine, from when to when. Close it, or the driver goes on writing."""

    def __init__(self, record: Any, path: str) -> None:
        self._log = record
        self._path = path
        self._out: Any = ffi.new("struct nvc_rm_record[]", record.count)

    def read(self) -> tuple[list[Record], int]:
        """What happened since the last call, and how many records were lost. Raises RmError."""
        count, lost = ffi.new("uint32_t *"), ffi.new("uint64_t *")
        result = lib.nvc_rm_log_read(self._log, self._out, self._log.count, count, lost)
        _done(result, "read the switch log", self._path)
        data = ffi.buffer(self._out, count[0] * _RECORD.size)
        found = [
            Record(time, kind, pid, context, instances >> 8, instances & 0xFF)
            for time, kind, pid, context, instances in _RECORD.iter_unpack(data)
        ]
        return found, int(lost[0])

    def close(self) -> None:
        lib.nvc_rm_log_close(self._log)


class Subdevice:
    """A GPU by a client of our own, which may name other clients' channels."""

    def __init__(self, fd: int, client: int, instance: int, control: str) -> None:
        self.instance = instance
        self._fd, self._client, self._path = fd, client, control
        self._base = _HANDLES + _EACH * (instance + 1)
        self._handle = self._base + _SUBDEVICE
        result = lib.nvc_rm_device(fd, client, instance, self._base, self._handle)
        _done(result, f"open device {instance}", control)

    def _disable(self, disable: bool, channels: Sequence[tuple[int, int]]) -> int:
        worst = 0
        for start in range(0, len(channels), lib.NVC_RM_CHANNELS):
            part = channels[start : start + lib.NVC_RM_CHANNELS]
            clients = [client for client, _ in part]
            handles = [channel for _, channel in part]
            result = lib.nvc_rm_disable(
                self._fd, self._client, self._handle, disable, len(part), clients, handles
            )
            worst = _checked(result, "stop channels" if disable else "start channels", self._path) or worst
        return worst

    def stop(self, channels: Sequence[tuple[int, int]]) -> int:
        """Take (client, channel) off the GPU, also in the middle of a kernel, until `start`.

        Returns the driver's last status that is not 0. 0x21: one of them is not there, and the others may or may
        not have been stopped. Raises RmError.
        """
        return self._disable(True, channels)

    def start(self, channels: Sequence[tuple[int, int]]) -> int:
        """Let (client, channel) go on, stopped or not. Returns and raises what `stop` does."""
        return self._disable(False, channels)

    def now(self) -> int:
        """The GPU's timer, ns. Raises RmError."""
        ns = ffi.new("uint64_t *")
        _done(lib.nvc_rm_now(self._fd, self._client, self._handle, ns), "read the GPU's timer", self._path)
        return int(ns[0])

    def log(self) -> SwitchLog:
        """Have the driver write the switch log, for all users. One a device at a time. Raises RmError."""
        record = ffi.new("struct nvc_rm_log *")
        record.fd, record.client, record.subdevice = self._fd, self._client, self._handle
        record.handles = self._base + _LOG
        opened: list[int] = []
        try:
            for _ in range(2):
                opened.append(_open(self._path))
            result = lib.nvc_rm_log_open(record, *opened)
        finally:
            for descriptor in opened:
                os.close(descriptor)
        step = _LOG_STEPS.get(record.step, "open the switch log")
        if _checked(result, step, self._path):
            reason = _REASONS.get(record.reason, "") if record.step == lib.NVC_RM_LOG_BIND else ""
            raise RmError(step, self._path, f"{words(result)}{': ' if reason else ''}{reason}")
        return SwitchLog(record, self._path)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RmError.of("open", path, error) from None


class Rm:
    """A client of the resource manager. It and all that it has are freed with its descriptor."""

    def __init__(self, fd: int, nodes: list[int], client: int, control: str, driver: str) -> None:
        self._fd, self._nodes, self._client = fd, nodes, client
        self._control, self._driver = control, driver

    @staticmethod
    def open(control: str, nodes: Sequence[str] = (), driver: str = _DRIVER) -> Rm:
        """`control` is the path of nvidiactl. `nodes` are devices to hold open: the driver knows those alone that
        somebody has open. `driver` is the directory of procfs. Raises RmError.
        """
        descriptors: list[int] = []
        try:
            for path in (control, *nodes):
                descriptors.append(_open(path))
            client = ffi.new("uint32_t *")
            _done(lib.nvc_rm_client(descriptors[0], client), "make a client", control)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return Rm(descriptors[0], descriptors[1:], int(client[0]), control, driver)

    def devices(self) -> tuple[RmDevice, ...]:
        """The GPUs that somebody has open, ourselves included. Raises RmError."""
        ids = ffi.new("uint32_t[]", lib.NVC_RM_GPUS)
        _done(lib.nvc_rm_attached(self._fd, self._client, ids), "list GPUs", self._control)
        minors = read_minors(self._driver)
        found = []
        for gpu_id in ids:
            if gpu_id == 0xFFFFFFFF:
                continue
            instance, text = ffi.new("uint32_t *"), ffi.new(f"char[{lib.NVC_RM_UUID}]")
            result = lib.nvc_rm_identify(self._fd, self._client, gpu_id, instance, text)
            _done(result, f"identify GPU {gpu_id:#x}", self._control)
            uuid = ffi.string(text).decode("ascii", "replace").lower().replace("gpu-", "GPU-", 1)
            if not _UUID.fullmatch(uuid):
                raise RmError(
                    f"identify GPU {gpu_id:#x}", self._control, f"the driver gives no UUID: {uuid!r}"
                )
            found.append(RmDevice(int(instance[0]), int(gpu_id), uuid, minors.get(uuid, -1)))
        return tuple(found)

    def subdevice(self, instance: int) -> Subdevice:
        """A device and subdevice of our client; once for each instance. Raises RmError."""
        return Subdevice(self._fd, self._client, instance, self._control)

    def close(self) -> None:
        """Free all. What was stopped stays stopped."""
        for descriptor in (self._fd, *self._nodes):
            os.close(descriptor)


def read_minors(driver: str) -> dict[str, int]:
    """UUID to minor number, from DRIVER/gpus/*/information; what cannot be read is left out."""
    found = {}
    try:
        names = os.listdir(f"{driver}/gpus")
    except OSError:
        return {}
    for name in names:
        try:
            with open(f"{driver}/gpus/{name}/information", "rb") as file:
                text = file.read(65536).decode("utf-8", "replace")
            fields = dict(line.partition(":")[::2] for line in lines_of(text))
            uuid, minor = fields["GPU UUID"].strip(), int(fields["Device Minor"])
        except (OSError, KeyError, ValueError):
            continue
        if _UUID.fullmatch(uuid):
            found[uuid] = minor
    return found


def set_timeslice(fd: int, client: int, group: int, us: int) -> int:
    """Set the timeslice of a channel group by a descriptor of who made the client; the status."""
    result = lib.nvc_rm_set_timeslice(fd, client, group, us)
    return _checked(result, "set a timeslice", f"group {group:#x}")


def get_timeslice(fd: int, client: int, group: int) -> tuple[int, int]:
    """The status, and the timeslice in µs."""
    us = ffi.new("uint64_t *")
    result = lib.nvc_rm_get_timeslice(fd, client, group, us)
    return _checked(result, "read a timeslice", f"group {group:#x}"), int(us[0])


def borrow(pid: int, number: int, control: str = "/dev/nvidiactl") -> int:
    """A copy of a process's descriptor of the driver's control file. Raises RmError for others.

    That file is the node of the same number, or, for a simulated driver, a file of the same file system.
    """
    step, path = "take a descriptor", f"/proc/{pid}/fd/{number}"
    fd = -1
    try:
        fd = processes.borrow(pid, number)
        ours, theirs = os.stat(control), os.fstat(fd)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        hint = "CAP_SYS_PTRACE is needed" if isinstance(error, PermissionError) else ""
        raise RmError.of(step, path, error, hint) from None
    same_kind = stat.S_IFMT(ours.st_mode) == stat.S_IFMT(theirs.st_mode)
    same = ours.st_rdev == theirs.st_rdev if stat.S_ISCHR(ours.st_mode) else ours.st_dev == theirs.st_dev
    if not (same_kind and same):
        os.close(fd)
        raise RmError(step, path, f"it is not of {control}")
    return fd
