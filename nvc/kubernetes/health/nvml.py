"""The process that asks NVML how GPUs are: the vendor's library runs there, without rights, and may hang or die.

Two processes: a keeper, which does nothing but begin the other one again when it has ended, and that one. It begins
before this process has threads. On its socket it writes lines of JSON:

    [[UUID, lost, ECC, REMAPPING, events, FIGURES, [[MIG UUID, PROFILE], ...]], ...]    all GPUs; -1: not told
    {"xid": [UUID, NUMBER]}
    TEXT                                                                                why it cannot ask

FIGURES is [used, total, busy, copy, celsius, milliwatt, SM MHz, memory MHz].
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

from nvc.daemon.io import helper
from nvc.slices.make.confine import become_nobody, die_with
from nvc.slices.make.nvml import (
    LOST,
    NAME_MAX,
    NOT_TOLD,
    SUCCESS,
    gpus,
    load,
    memory_of,
    mig_devices,
    utilization_of,
    uuid_of,
)

XID = 0x8  # nvmlEventTypeXidCriticalError
UNCORRECTED, VOLATILE = 1, 0
#: Milliseconds that one call waits for an Xid at most, and seconds that a round may take: then the process ends.
WAIT_MS, ROUND_MAX = 1000, 30


class _Event(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def start() -> tuple[int, socket.socket]:
    """The keeper's id, and the socket on which lines come; its other end is closed when the keeper ends."""

    def work(channel: socket.socket, parent: int) -> None:
        die_with(parent)
        with channel.makefile("r", encoding="utf-8", errors="surrogateescape") as told:
            root, path, interval = (told.readline().rstrip("\n") for _ in range(3))
        if interval:
            _keep(root, path, channel.fileno(), float(interval))

    return helper.start(socket.SOCK_STREAM, work, "nvc-nvml")


def _keep(root: str, library: str, fd: int, interval: float) -> None:
    while True:
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                become_nobody(root, keeper)
                _serve(library, fd, interval)
            except (OSError, AttributeError) as error:
                _write(fd, str(error)[:200])
            finally:
                os._exit(1)
        if os.WIFSIGNALED(os.waitpid(pid, 0)[1]):  # else it has said why it ends
            _write(fd, "the process that asks NVML has ended")
        time.sleep(interval / 2)


def _write(fd: int, told: Any) -> None:
    data = f"{json.dumps(told)}\n".encode()
    while data:
        data = data[os.write(fd, data) :]


def _serve(library: str, fd: int, interval: float) -> None:
    signal.alarm(ROUND_MAX)
    nvml = load(library)
    events = ctypes.c_void_p()
    nvml.nvmlEventSetCreate(ctypes.byref(events))
    registered: set[str] = set()
    while True:
        signal.alarm(ROUND_MAX + int(interval))
        names: dict[int, str] = {}  # by handle
        try:
            _write(fd, [_looked(nvml, device, uuid, events, registered) for device, uuid in _named(nvml, names)])
        except OSError as error:
            _write(fd, str(error))
        until = time.monotonic() + interval
        while (left := until - time.monotonic()) > 0:
            event = _Event()
            if not registered:  # nothing to wait for, and some drivers return at once
                time.sleep(left)
                continue
            wait = min(WAIT_MS, int(left * 1000) + 1)
            if nvml.nvmlEventSetWait_v2(events, ctypes.byref(event), wait) == SUCCESS:
                uuid = names.get(event.device or 0) or uuid_of(nvml, ctypes.c_void_p(event.device))
                if event.kind == XID:
                    _write(fd, {"xid": (uuid, event.data)})


def _named(nvml: Any, names: dict[int, str]) -> Iterator[tuple[ctypes.c_void_p, str]]:
    """All GPUs, each with its UUID, which `names` gets. One that is lost is missing, and that is how it counts."""
    for device in gpus(nvml):
        if uuid := uuid_of(nvml, device):
            names[device.value or 0] = uuid
            yield device, uuid


def _looked(
    nvml: Any, device: ctypes.c_void_p, uuid: str, events: ctypes.c_void_p, registered: set[str]
) -> list[Any]:
    if uuid not in registered and nvml.nvmlDeviceRegisterEvents(device, XID, events) == SUCCESS:
        registered.add(uuid)
    errors = ctypes.c_ulonglong()
    code = nvml.nvmlDeviceGetTotalEccErrors(device, UNCORRECTED, VOLATILE, ctypes.byref(errors))
    ecc = errors.value if code == SUCCESS else NOT_TOLD
    known = [code == LOST, ecc, _remapping(nvml, device), uuid in registered]
    return [uuid, *known, _figures(nvml, device), _profiles(nvml, device)]


def _remapping(nvml: Any, device: ctypes.c_void_p) -> int:
    """0: none, 1: pending until a reset, 2: failed; -1: not told, as of GPUs before Ampere."""
    counts = [ctypes.c_uint() for _ in range(4)]
    try:
        code = nvml.nvmlDeviceGetRemappedRows(device, *map(ctypes.byref, counts))
    except AttributeError:
        return NOT_TOLD
    if code != SUCCESS:
        return NOT_TOLD
    return 2 if counts[3].value else int(bool(counts[2].value))


def _figures(nvml: Any, device: ctypes.c_void_p) -> list[int]:
    total, used = memory_of(nvml, device)
    found = [used, total, *utilization_of(nvml, device)]
    for call, words in (
        (nvml.nvmlDeviceGetTemperature, (0,)),
        (nvml.nvmlDeviceGetPowerUsage, ()),
        (nvml.nvmlDeviceGetClockInfo, (1,)),
        (nvml.nvmlDeviceGetClockInfo, (2,)),
    ):
        value = ctypes.c_uint()
        found.append(value.value if call(device, *words, ctypes.byref(value)) == SUCCESS else NOT_TOLD)
    return found


def _profiles(nvml: Any, device: ctypes.c_void_p) -> list[tuple[str, str]]:
    """The MIG devices, by whose names only a driver tells their profiles: `NVIDIA H100 80GB HBM3 MIG 1g.10gb`."""
    found = []
    for part in mig_devices(nvml, device):
        name = ctypes.create_string_buffer(NAME_MAX)
        if nvml.nvmlDeviceGetName(part, name, NAME_MAX) == SUCCESS:
            profile = name.value.decode("ascii", "replace").rpartition(" MIG ")[2]
            found.append((uuid_of(nvml, part), profile.split(" ")[0]))
    return found
