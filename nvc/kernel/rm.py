"""The NVIDIA driver's resource manager (RM), as far as keeping time needs it.

Calls return the driver's status, 0 for success; `STATUS` has words for it. What cannot go on raises RmError, and so
does an errno of the kernel always: the descriptor is not the driver's, or the driver is gone.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import struct
from typing import NamedTuple

from nvc.base.errors import RmError
from nvc.base.files import closing, lines_of
from nvc.base.types import Sequence
from nvc.base.value import Value
from nvc.kernel import fence, processes, rm_abi, strerror
from nvc.kernel.rm_abi import Client, open_control, words

START, END, RESET = 1, 2, 3
KEPT = 8  # the driver is told what it may write over once that is one part in so many of the log
#: NV2080_CTRL_GR_FECS_BIND_REASON_CODE_*.
_REASONS = {
    1: "the GPU is too old",
    2: "not enabled on the GPU",
    3: "not enabled",
    4: "CAP_SYS_ADMIN of the first user namespace is needed",
    5: "a capability of the driver is needed",
}
#: class/cl90cdfecs.h, NV_EVENT_BUFFER_FECS_CTXSWTAG_*: start, simple start, save end, simple end, engine reset.
_KINDS = {0x05: START, 0x06: START, 0x03: END, 0x07: END, 0xFE: RESET}
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DRIVER = "/proc/driver/nvidia"
#: The first handle of ours, how many each device has, and which. A client's handles are its own.
_HANDLES, _EACH, _OF_SUBDEVICE, _OF_LOG = 0xCAF00000, 0x20, 1, 0x10


class Record(NamedTuple):
    """A change of contexts. `time_ns` is the GPU's timer; 0 where the firmware gave no time."""

    time_ns: int
    kind: int  # START, END, RESET
    pid: int  # of the host


class RmDevice(Value):
    """A GPU. `instance` is the device instance of RM; `minor` of /dev/nvidiaN, -1 where the driver does not say."""

    instance: int
    uuid: str
    minor: int


class SwitchLog:
    """Who had the graphics and compute engine, from when to when. Close it, or the driver goes on writing."""

    def __init__(self, client: Client, subdevice: int, handles: int) -> None:
        self._client = client
        self._header_memory, self._record_memory, self._buffer = range(handles, handles + 3)
        self._made: list[int] = []
        self._maps: list[mmap.mmap] = []
        self._count = (rm_abi.RECORD_BYTES - rm_abi.HEADER_BYTES) // rm_abi.RECORD.size
        self._sequence = -1  # of the record before
        self._told = 0  # records that were told as lost, and whose gap in the sequence is still to come
        try:
            self._allocate("header", self._header_memory, rm_abi.HEADER_BYTES)
            self._allocate("records", self._record_memory, rm_abi.RECORD_BYTES)
            self._begin(subdevice)
        except BaseException:
            self.close()
            raise

    def _make(self, step: str, handle: int, kind: int, parameters: bytes) -> None:
        self._client.make(step, handle, kind, parameters)
        self._made.append(handle)

    def _allocate(self, name: str, memory: int, size: int) -> None:
        client, step = self._client, f"map the log's {name}"
        parameters = rm_abi.MEMORY_IS.pack(rm_abi.OWNER, rm_abi.CACHED, rm_abi.USER_READ_ONLY, size)
        self._make(f"allocate the log's {name}", memory, rm_abi.DEVICELESS, parameters)
        # A descriptor of the control file holds what is to be mapped by it, once.
        with closing(open_control(client.path)) as fd:
            fields = (client.handle, client.handle, memory, 0, 0, size, 0, 0, rm_abi.MAP_READ_ONLY, fd)
            client.call(step, rm_abi.MAP_MEMORY, rm_abi.MAP_CALL, 7, *fields)
            try:
                self._maps.append(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))
            except OSError as error:
                raise RmError.of(step, client.path, error) from None

    def _begin(self, subdevice: int) -> None:
        client, size = self._client, rm_abi.RECORD.size
        # The subdevice always: without it 580's constructor reads through a null pointer.
        memory = (self._header_memory, self._record_memory)
        parameters = rm_abi.BUFFER_IS.pack(size, self._count, subdevice, *memory)
        self._make("make the event buffer", self._buffer, rm_abi.EVENT_BUFFER, parameters)
        enable = rm_abi.PAIR.pack(1, 1)  # on; the oldest are kept
        client.ask("enable the event buffer", self._buffer, rm_abi.ENABLE_EVENTS, enable)
        step, bind = "bind the switch log", rm_abi.BIND_IS
        asked = bytearray(bind.pack(self._buffer, size - rm_abi.RECORD_HEADER, 1, 0, 1, 0))
        if status := client.control(step, subdevice, rm_abi.BIND, asked):
            reason = _REASONS.get(bind.unpack(asked)[-1], "")
            raise RmError(step, client.path, f"{words(status)}{': ' if reason else ''}{reason}")
        self._get: int = rm_abi.HEADER.unpack(self._maps[0][: rm_abi.HEADER.size])[0]
        self._freed = self._get  # the driver may write over what is before it
        if self._get >= self._count:
            raise RmError(step, client.path, strerror(errno.EBADMSG))

    def read(self) -> tuple[list[Record], int]:
        """What happened since the last call, and how many records were lost. Raises RmError."""
        step, client, (header, records) = "read the switch log", self._client, self._maps
        client.ask(step, self._buffer, rm_abi.FLUSH)
        # A copy: what is unpacked in place is read byte by byte, while the driver writes.
        _, put, dropped = rm_abi.HEADER.unpack(header[: rm_abi.HEADER.size])
        if put >= self._count:
            raise RmError(step, client.path, strerror(errno.EBADMSG))
        fence()
        size = rm_abi.RECORD.size
        start, end, whole = self._get * size, put * size, self._count * size
        data = records[start:end] if start <= end else records[start:whole] + records[:end]
        found, missing = [], 0
        self._told += dropped  # what there was no room for shows in the sequence too, once a record follows
        for layout, tag, sequence, pid, time_ns in rm_abi.RECORD.iter_unpack(data):
            if layout != rm_abi.FECS_V2:
                missing += 1
                continue
            gap = sequence - self._sequence - 1 & 0xFFFF if self._sequence >= 0 else 0
            known = min(gap, self._told)
            self._told -= known
            missing += gap - known
            self._sequence = sequence
            if kind := _KINDS.get(tag):
                found.append(Record(time_ns, kind, pid))
        self._get = put
        if dropped or (put - self._freed) % self._count > self._count // KEPT:
            client.ask(step, self._buffer, rm_abi.UPDATE_GET, rm_abi.PAIR.pack(put, 0))
            self._freed = put
        return found, missing + dropped

    def close(self) -> None:
        """Have the driver write no more, and free what there is."""
        if self._buffer in self._made:
            self._client.free(self._made.pop())
        while self._maps:
            self._maps.pop().close()
        while self._made:
            self._client.free(self._made.pop())


class Subdevice:
    """A GPU by a client of our own, which may name other clients' channels."""

    def __init__(self, client: Client, instance: int) -> None:
        self.instance = instance
        self._client = client
        self._base = _HANDLES + _EACH * (instance + 1)
        self._handle = self._base + _OF_SUBDEVICE
        step = f"open device {instance}"
        client.make(step, self._base, rm_abi.DEVICE, rm_abi.DEVICE_IS.pack(instance))
        try:
            client.make(step, self._handle, rm_abi.SUBDEVICE, bytes(4), self._base)
        except RmError:
            client.free(self._base)
            raise

    def _disable(self, disable: bool, channels: Sequence[tuple[int, int]]) -> int:
        worst, step = 0, "stop channels" if disable else "start channels"
        for start in range(0, len(channels), rm_abi.CHANNELS_MAX):
            part = channels[start : start + rm_abi.CHANNELS_MAX]
            count, (clients, handles) = len(part), zip(*part)
            layout = rm_abi.DISABLE_IS.format(count, 4 * (rm_abi.CHANNELS_MAX - count))
            parameters = bytearray(struct.pack(layout, disable, count, *clients, *handles))
            worst = self._client.control(step, self._handle, rm_abi.DISABLE_CHANNELS, parameters) or worst
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
        ns = self._client.ask("read the GPU's timer", self._handle, rm_abi.GET_TIME, bytes(8))
        return int.from_bytes(ns, "little")

    def log(self) -> SwitchLog:
        """Have the driver write the switch log, for all users. One a device at a time. Raises RmError."""
        return SwitchLog(self._client, self._handle, self._base + _OF_LOG)


class Rm:
    """A client of the resource manager. It and all that it has are freed with its descriptor."""

    def __init__(self, client: Client, nodes: list[int], driver: str) -> None:
        self._client, self._nodes, self._driver = client, nodes, driver

    @staticmethod
    def open(control: str, nodes: Sequence[str] = (), driver: str = _DRIVER) -> Rm:
        """`control` is the path of nvidiactl. `nodes` are devices to hold open: the driver knows those alone that
        somebody has open. `driver` is the directory of procfs. Raises RmError.
        """
        descriptors: list[int] = []
        try:
            for path in (control, *nodes):
                descriptors.append(open_control(path))
            return Rm(Client.made(descriptors[0], control), descriptors[1:], driver)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def devices(self) -> tuple[RmDevice, ...]:
        """The GPUs that somebody has open, ourselves included. Raises RmError."""
        client, minors = self._client, read_minors(self._driver)
        ids = client.ask("list GPUs", client.handle, rm_abi.ATTACHED_IDS, b"\xff" * rm_abi.ATTACHED_BYTES)
        found = []
        for (gpu_id,) in struct.iter_unpack("<I", ids):
            if gpu_id == 0xFFFFFFFF:
                continue
            step = f"identify GPU {gpu_id:#x}"
            info = client.ask(step, client.handle, rm_abi.ID_INFO, rm_abi.ID_IS.pack(gpu_id, 0))
            name = client.ask(step, client.handle, rm_abi.UUID_OF, rm_abi.UUID_IS.pack(gpu_id, b""))
            text = rm_abi.UUID_IS.unpack(name)[1].partition(b"\0")[0]
            uuid = text.decode("ascii", "replace").lower().replace("gpu-", "GPU-", 1)
            if not _UUID.fullmatch(uuid):
                raise RmError(step, client.path, f"the driver gives no UUID: {uuid!r}")
            found.append(RmDevice(rm_abi.ID_IS.unpack(info)[1], uuid, minors.get(uuid, -1)))
        return tuple(found)

    def subdevice(self, instance: int) -> Subdevice:
        """A device and subdevice of our client; once for each instance. Raises RmError."""
        return Subdevice(self._client, instance)

    def close(self) -> None:
        """Free all. What was stopped stays stopped."""
        for descriptor in (self._client.fd, *self._nodes):
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
    caller, parameters = Client(fd, client, f"group {group:#x}"), bytearray(us.to_bytes(8, "little"))
    return caller.control("set a timeslice", group, rm_abi.SET_TIMESLICE, parameters)


def get_timeslice(fd: int, client: int, group: int) -> tuple[int, int]:
    """The status, and the timeslice in µs."""
    caller, us = Client(fd, client, f"group {group:#x}"), bytearray(8)
    status = caller.control("read a timeslice", group, rm_abi.GET_TIMESLICE, us)
    return status, int.from_bytes(us, "little")


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
