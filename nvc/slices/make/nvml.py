"""What every process that asks the driver's NVML needs; the vendor's code runs in such processes alone.

Functions and structures are those of nvml.h. Figures that the driver does not tell are NOT_TOLD.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

GPUS_MAX, MIG_MAX, PROCESSES_MAX = 64, 16, 4096
NAME_MAX = 96
# nvmlReturn_t; MISSING: the driver has no such function
SUCCESS, NOT_SUPPORTED, NOT_FOUND, MISSING, LOST = 0, 3, 6, 13, 15
NOT_TOLD = -1


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t, which nvmlDeviceGetComputeRunningProcesses_v3 fills."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def load(path: str) -> Any:
    """The library, initialized. Raises OSError."""
    nvml = ctypes.CDLL(path)
    code = nvml.nvmlInit_v2()
    if code:
        raise OSError(f"nvmlInit: error {code}")
    return nvml


def gpus(nvml: Any) -> Iterator[ctypes.c_void_p]:
    """The handles of all GPUs but those that are lost, or not ours to see. Raises OSError."""
    count = ctypes.c_uint()
    code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    if code:
        raise OSError(f"nvmlDeviceGetCount: error {code}")
    for index in range(min(count.value, GPUS_MAX)):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == SUCCESS:
            yield device


def mig_devices(nvml: Any, device: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
    """The handles of a GPU's MIG devices."""
    most = ctypes.c_uint()
    if nvml.nvmlDeviceGetMaxMigDeviceCount(device, ctypes.byref(most)):
        return
    for number in range(min(most.value, MIG_MAX)):
        part = ctypes.c_void_p()
        code = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, number, ctypes.byref(part))
        if code == SUCCESS:
            yield part
        elif code == NOT_SUPPORTED:  # it is not in this mode
            return


def uuid_of(nvml: Any, device: ctypes.c_void_p) -> str:
    """The UUID of a GPU or MIG device; "" where it is not told."""
    text = ctypes.create_string_buffer(NAME_MAX)
    return "" if nvml.nvmlDeviceGetUUID(device, text, NAME_MAX) else text.value.decode("ascii", "replace")


def memory_of(nvml: Any, device: ctypes.c_void_p) -> tuple[int, int]:
    """All memory and what is used of it, bytes."""
    memory = _Memory()
    known = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == SUCCESS
    return (memory.total, memory.used) if known else (NOT_TOLD, NOT_TOLD)


def utilization_of(nvml: Any, device: ctypes.c_void_p) -> tuple[int, int]:
    """Percent of the time with kernels, and with copies."""
    busy = _Utilization()
    known = nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(busy)) == SUCCESS
    return (busy.gpu, busy.memory) if known else (NOT_TOLD, NOT_TOLD)
