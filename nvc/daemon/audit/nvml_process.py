"""The process that asks NVML for nvcd: the vendor's library runs there, without rights, and may hang or die.

Asked by a byte on its socket, which says whether utilization is wanted too, or only the memory that is in use, it
answers with lines of text behind their length (four bytes, little-endian):

    device UUID MEMORY USED GPU-PERCENT MEMORY-PERCENT COMPUTE-MODE    bytes; -1: not told
    process UUID PID BYTES                                             of the device above; -1: not told
    sampled UUID ERROR                                                 whether NVML told of utilization; 0: it did
    busy UUID PID PERCENT                                              of the time since it was last asked for
    problem TEXT
"""

from __future__ import annotations

import ctypes
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
        lines: list[str] = []
        try:
            nvml = nvml or load(library)
            if asked == GLANCE:
                _glance(nvml, lines)
            else:
                _ask(nvml, lines, seen if asked == WITH_USE else None)
        except (OSError, AttributeError) as error:
            lines = [f"problem {str(error)[:200]}"]
        data = "\n".join(lines).encode("ascii", "replace")
        data = len(data).to_bytes(4, "little") + data
        while data:
            data = data[os.write(fd, data) :]


def _glance(nvml: Any, lines: list[str]) -> None:
    """How much memory is in use. That takes 50 microseconds, and a list of 16 processes a millisecond and more."""
    for device in gpus(nvml):
        total, used = memory_of(nvml, device)
        lines.append(f"device {uuid_of(nvml, device)} {total} {used} {NOT_TOLD} {NOT_TOLD} {NOT_TOLD}")


def _ask(nvml: Any, lines: list[str], seen: dict[str, int] | None) -> None:
    for device in gpus(nvml):
        _describe(nvml, device, lines, seen)
        for part in mig_devices(nvml, device):
            _describe(nvml, part, lines, seen)


def _describe(nvml: Any, device: ctypes.c_void_p, lines: list[str], seen: dict[str, int] | None) -> None:
    name = uuid_of(nvml, device)
    if not name:
        return
    mode = ctypes.c_uint()
    known = nvml.nvmlDeviceGetComputeMode(device, ctypes.byref(mode)) == SUCCESS
    figures = (*memory_of(nvml, device), *utilization_of(nvml, device), mode.value if known else NOT_TOLD)
    lines.append(f"device {name} {' '.join(map(str, figures))}")
    for kind in ("Compute", "Graphics"):
        count = ctypes.c_uint(PROCESSES_MAX)
        processes = (ProcessInfo * PROCESSES_MAX)()
        ask = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")
        if ask(device, ctypes.byref(count), processes):
            continue
        for process in processes[: min(count.value, PROCESSES_MAX)]:
            used = NOT_TOLD if process.used == UNKNOWN else process.used
            lines.append(f"process {name} {process.pid} {used}")
    if seen is not None:
        _add_use(nvml, device, name, lines, seen)


def samples_since(last: int, now: int) -> int:
    """From when on samples are of interest, if the last one was of `last`. Microseconds of the wall clock, which
    may have been set meanwhile."""
    return last if now - SAMPLES_SINCE < last <= now + SAMPLES_SINCE else now - SAMPLES_SINCE


def _add_use(nvml: Any, device: ctypes.c_void_p, name: str, lines: list[str], seen: dict[str, int]) -> None:
    """Add what part of the time each process had kernels on the multiprocessors."""
    count, samples = ctypes.c_uint(PROCESSES_MAX), (_Sample * PROCESSES_MAX)()
    since = samples_since(seen.get(name, 0), int(time.time() * 1e6))
    try:
        ask = nvml.nvmlDeviceGetProcessUtilization
    except AttributeError:
        code = MISSING
    else:
        code = ask(device, samples, ctypes.byref(count), ctypes.c_ulonglong(since))
    found: dict[int, list[int]] = {}
    if code == SUCCESS:
        last = since
        for one in samples[: min(count.value, PROCESSES_MAX)]:
            # Entries without a process are of others, and what is above 100 % was never measured.
            if one.pid and one.sm <= 100 and since < one.time <= since + 2 * SAMPLES_SINCE:
                found.setdefault(one.pid, []).append(one.sm)
                last = max(last, one.time)
        seen[name] = last
    lines.append(f"sampled {name} {0 if code == NOT_FOUND else code}")
    lines += [f"busy {name} {pid} {sum(parts) // len(parts)}" for pid, parts in found.items()]
