"""The GPU that tests and benches of a real driver use: the first, or what NVC_BENCH_DEVICE names by index or UUID.

So several sessions can run side by side on a host with several GPUs. NVC_BENCH_ROOT names another driver root than
`/`, such as a simulated one, on which a test of this kind can be tried.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import tempfile

from . import CLEAN_ENV, need, run

ROOT = os.environ.get("NVC_BENCH_ROOT", "/")


def chosen() -> str:
    """The index or UUID that was named."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return os.environ.get("NVC_BENCH_DEVICE") or visible or "0"


def simulated() -> bool:
    """Whether the driver root is one that `nvc-cli sim create` has made."""
    return os.path.exists(os.path.join(ROOT, "proc/driver/nvidia/sim/description"))


def place_of_slice(wanted: str) -> str:
    """Where a slice's libraries can lie: the simulated driver's look for it above themselves."""
    return tempfile.mkdtemp(prefix="slice-", dir=ROOT) if simulated() else wanted


@functools.cache
def libraries() -> str:
    """The directory of the driver's libcuda.so.1."""
    if ROOT != "/":
        return os.path.join(ROOT, "usr/lib", f"{os.uname().machine}-linux-gnu")
    cache = run("/sbin/ldconfig", "-p").stdout
    found = re.search(r"libcuda\.so\.1 \(libc6,(?:x86-64|AArch64)\) => (\S+)", cache)
    assert found, "no libcuda.so.1 in the loader's cache"
    return os.path.dirname(found[1])


def smi(field: str) -> str:
    """A field of the GPU, as nvidia-smi says it."""
    program = need("nvidia-smi") if ROOT == "/" else os.path.join(ROOT, "usr/bin/nvidia-smi")
    words = [program, "-i", chosen(), f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    variables = CLEAN_ENV if ROOT == "/" else {**CLEAN_ENV, "LD_LIBRARY_PATH": libraries()}
    return run(*words, env=variables).stdout.splitlines()[0].strip()


@functools.cache
def uuid() -> str:
    """The GPU's UUID."""
    return smi("uuid")


@functools.cache
def all_uuids() -> list[str]:
    """The UUIDs of all of the host's GPUs, that one first."""
    library, _ = _nvml()
    count, text = ctypes.c_uint(), ctypes.create_string_buffer(96)
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        assert library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
        assert library.nvmlDeviceGetUUID(handle, text, len(text)) == 0
        found.append(text.value.decode())
    return sorted(found, key=lambda one: one != uuid())


def visible() -> dict[str, str]:
    """Variables with which a program sees that GPU alone, with a slice or without."""
    return {"CUDA_VISIBLE_DEVICES": uuid()}


@functools.cache
def _nvml() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """NVML, and its handle of the GPU."""
    library, handle = ctypes.CDLL(os.path.join(libraries(), "libnvidia-ml.so.1")), ctypes.c_void_p()
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetHandleByUUID(uuid().encode(), ctypes.byref(handle)) == 0
    return library, handle


def memory_used() -> int:
    """Bytes of the GPU's memory that are in use, whoever has them, as NVML says."""
    library, handle = _nvml()
    total_free_used = (ctypes.c_ulonglong * 3)()
    assert library.nvmlDeviceGetMemoryInfo(handle, total_free_used) == 0
    return int(total_free_used[2])


def processes() -> int:
    """How many processes compute on the GPU, as far as NVML tells."""
    library, handle = _nvml()
    count = ctypes.c_uint(0)
    code = library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
    assert code in (0, 7), code  # 7: there are more than the none that it was given room for
    return int(count.value)
