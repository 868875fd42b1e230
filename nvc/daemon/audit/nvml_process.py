"""The process that asks NVML for nvcd: the vendor's library runs there, without rights, and may hang or die.

Asked by a byte on its socket, which says whether utilization is wanted too, or only the memory that is in use, it
answers with JSON behind its length (four bytes, little-endian): a text, why it cannot, or a list of devices, each:

    UUID, bytes, bytes in use, percent of the time with kernels and with copies, compute mode    -1: not told
    a list of processes, each with its bytes
    whether NVML told of utilization: 0: it did, -1: it was not asked, else its error
    a list of processes, each with its percentage of the time since that was last asked for
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import time
from typing import Any

from nvc.daemon.io import helper
from nvc.slices.make.calibrate import Libraries
from nvc.slices.make.confine import become_nobody
from nvc.slices.make.nvml import (
    MISSING,
    NOT_FOUND,
    NOT_TOLD,
    PROCESSES_MAX,
    SUCCESS,
    ProcessInfo,
    gpus,
    load,
    memory_of,
    mig_devices,
    utilization_of,
    uuid_of,
)

UNKNOWN = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
PLAIN, WITH_USE, GLANCE = b"?", b"u", b"m"  # what it is asked
SAMPLES_SINCE = 5_000_000  # microseconds: what is older is of no interest, nor what is of another time


class _Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("time", ctypes.c_ulonglong),  # microseconds since the epoch
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    ]


def start(libraries: Libraries) -> tuple[int, socket.socket]:
    """The process's id, and the socket to it."""

    def work(channel: socket.socket, parent: int) -> None:
        become_nobody(libraries.root, parent)
        _serve(libraries.nvml, channel.fileno())

    return helper.start(socket.SOCK_STREAM, work, "nvcd-nvml")


def _serve(library: str, fd: int) -> None:
    nvml: Any = None
    seen: dict[str, int] = {}  # of each device, the time of its last sample
    while asked := os.read(fd, 1):
        try:
            nvml = nvml or load(library)
            told: Any = _glance(nvml) if asked == GLANCE else _ask(nvml, seen if asked == WITH_USE else None)
        except (OSError, AttributeError) as error:
            told = str(error)[:200]
        data = json.dumps(told).encode()
        data = len(data).to_bytes(4, "little") + data
        while data:
            data = data[os.write(fd, data) :]


def _glance(nvml: Any) -> list[Any]:
    """How much memory is in use. That takes 50 microseconds, and a list of 16 processes a millisecond and more."""
    unknown = (NOT_TOLD, NOT_TOLD, NOT_TOLD, (), NOT_TOLD, ())
    return [(uuid_of(nvml, device), *memory_of(nvml, device), *unknown) for device in gpus(nvml)]


def _ask(nvml: Any, seen: dict[str, int] | None) -> list[Any]:
    devices = [each for device in gpus(nvml) for each in (device, *mig_devices(nvml, device))]
    return [_described(nvml, device, name, seen) for device in devices if (name := uuid_of(nvml, device))]


def _described(nvml: Any, device: ctypes.c_void_p, name: str, seen: dict[str, int] | None) -> list[Any]:
    mode, listed = ctypes.c_uint(), []
    known = nvml.nvmlDeviceGetComputeMode(device, ctypes.byref(mode)) == SUCCESS
    figures = (*memory_of(nvml, device), *utilization_of(nvml, device), mode.value if known else NOT_TOLD)
    for kind in ("Compute", "Graphics"):
        count = ctypes.c_uint(PROCESSES_MAX)
        processes = (ProcessInfo * PROCESSES_MAX)()
        ask = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")
        if not ask(device, ctypes.byref(count), processes):
            listed += [(one.pid, one.used) for one in processes[: min(count.value, PROCESSES_MAX)]]
    own = [(pid, NOT_TOLD if used == UNKNOWN else used) for pid, used in listed]
    return [name, *figures, own, *((NOT_TOLD, ()) if seen is None else _use(nvml, device, name, seen))]


def samples_since(last: int, now: int) -> int:
    """From when on samples are of interest, if the last one was of `last`. Microseconds of the wall clock, which
    may have been set meanwhile."""
    return last if now - SAMPLES_SINCE < last <= now + SAMPLES_SINCE else now - SAMPLES_SINCE


def _use(nvml: Any, device: ctypes.c_void_p, name: str, seen: dict[str, int]) -> tuple[int, list[tuple[int, int]]]:
    """What part of the time each process had kernels on the multiprocessors, behind whether NVML told of it."""
    count, samples = ctypes.c_uint(PROCESSES_MAX), (_Sample * PROCESSES_MAX)()
    since = samples_since(seen.get(name, 0), int(time.time() * 1e6))
    try:
        code = nvml.nvmlDeviceGetProcessUtilization(device, samples, ctypes.byref(count), ctypes.c_ulonglong(since))
    except AttributeError:
        code = MISSING
    found: dict[int, list[int]] = {}
    if code == SUCCESS:
        last = since
        for one in samples[: min(count.value, PROCESSES_MAX)]:
            # Entries without a process are of others, and what is above 100 % was never measured.
            if one.pid and one.sm <= 100 and since < one.time <= since + 2 * SAMPLES_SINCE:
                found.setdefault(one.pid, []).append(one.sm)
                last = max(last, one.time)
        seen[name] = last
    return 0 if code == NOT_FOUND else code, [(pid, sum(parts) // len(parts)) for pid, parts in found.items()]
