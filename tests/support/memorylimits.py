"""NVML's limits of memory by cgroup, called as an administrator's program calls them."""

from __future__ import annotations

import json
import sys

from . import run
from .simdriver import environment

NO_LIMIT = (1 << 64) - 1
NO_PERMISSION, NOT_FOUND = 4, 6
_SCRIPT = """
import ctypes, json, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
device, limits = ctypes.c_void_p(), (ctypes.c_uint64 * 4)()
uuid, path, *numbers = sys.argv[1:]
assert nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)) == 0
text = ctypes.create_string_buffer(path.encode())
limits[0] = ctypes.addressof(text)
if numbers:
    limits[1], limits[2] = map(int, numbers)
    code = nvml.nvmlDeviceSetMemoryLimits_v1(device, limits)
else:
    code = nvml.nvmlDeviceGetMemoryLimits_v1(device, limits)
print(json.dumps([code, *limits[1:]]))
"""


def _call(root: str, *words: str, before: tuple[str, ...] = ()) -> list[int]:
    done = run(*before, sys.executable, "-c", _SCRIPT, *words, env=environment(root))
    return json.loads(done.stdout)


def set_limits(root: str, uuid: str, path: str, soft: int, hard: int, before: tuple[str, ...] = ()) -> int:
    """NVML's answer to new limits of the cgroup with this directory. `before` are words that start the program."""
    return _call(root, uuid, path, str(soft), str(hard), before=before)[0]


def get_limits(root: str, uuid: str, path: str, before: tuple[str, ...] = ()) -> tuple[int, int, int]:
    """Soft limit, hard limit and use of a cgroup in bytes."""
    code, *numbers = _call(root, uuid, path, before=before)
    assert code == 0, code
    return numbers[0], numbers[1], numbers[2]
