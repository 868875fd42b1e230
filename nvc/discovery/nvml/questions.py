"""What the probe asks NVML after it has given up its rights, in a process of its own that imports nothing any more.

Types and numbers are those of nvml.h, which is a stable ABI. The answer is for wire.py to judge: strings are taken
as they are, terminated or not.
"""

from __future__ import annotations

import posix
import struct

from nvc.base import fastjson
from nvc.base.types import Any, Callable
from nvc.base.value import Value
from nvc.discovery.nvml import wire
from nvc.kernel import ffi, lib

NO_LIMIT = (1 << 64) - 1
_SUCCESS, _NOT_SUPPORTED, _NOT_FOUND, _MISSING = 0, 3, 6, 13
_NOW, _LINK_MAP = 2, 2  # RTLD_NOW, RTLD_DI_LINKMAP
_STRING, _ROOM = 96, 4096  # structures of later versions are longer
_TEXT, _NUMBER = "void *, char *, unsigned", "void *, unsigned *"
#: nvmlGpuFabricInfo_v2_t: version, then the cluster, the state's nvmlReturn_t, the clique, the state, health.
_FABRIC = struct.Struct("<I16siIB3xI")


class MemoryLimit(Value):
    """Bytes of one GPU that the processes of a cgroup may have."""

    uuid: str
    soft: int  # reserved
    hard: int  # never exceeded; (1 << 64) - 1: no limit


class _Failed(Exception):
    """Why there is no answer: a status, a number, a step and a text of wire.py."""


class _Nvml:
    """The first library of the names that loads, begun. Raises _Failed."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._library, why = ffi.NULL, ""
        for name in names:
            if name[0] == "/" and not posix.access(name, posix.F_OK):
                continue  # an absolute one that does not exist is no news
            self._library = lib.dlopen(name.encode(), _NOW)
            if self._library:
                break
            told = _text(lib.dlerror())
            why = told if not why or name[0] == "/" else why  # a file that is there but does not load says more
        if not self._library:
            raise _Failed(wire.LOAD, 0, "load library failed", why or "libnvidia-ml.so.1: no such file")
        if code := self.call("void", "nvmlInit_v2", "nvmlInit"):
            raise self.failed("nvmlInit", code)

    def path(self) -> str:
        """Where the library was found."""
        found = ffi.new("void *[1]")
        if lib.dlinfo(self._library, _LINK_MAP, found) or not found[0]:
            return ""
        return _text(ffi.cast("char **", found[0])[1])  # struct link_map: address, name

    def call(self, types: str, name: str, older: str, *arguments: Any) -> int:
        """A function's answer. A driver that lacks it answers as NVML does for a missing one."""
        at = lib.dlsym(self._library, name.encode()) or older and lib.dlsym(self._library, older.encode())
        return int(ffi.cast(f"int(*)({types})", at)(*arguments)) if at else _MISSING

    def number(self, device: Any, name: str, older: str = "") -> tuple[int, int]:
        """The answer of a function for a device, and its number."""
        out = ffi.new("unsigned *")
        return self.call(_NUMBER, name, older, device, out), out[0]

    def text(self, device: Any, name: str) -> tuple[int, str]:
        """The answer of a function for a device, and its text."""
        out = ffi.new(f"char[{_ROOM}]")
        return self.call(_TEXT, name, "", device, out, _STRING), _text(out)

    def memory(self, device: Any) -> int:
        """MiB, or 0 where NVML does not tell: GPUs that share the host's, MIG without rights."""
        out = ffi.new(f"uint64_t[{_ROOM // 8}]")
        code = self.call("void *, void *", "nvmlDeviceGetMemoryInfo", "", device, out)
        return 0 if code or out[0] >> 52 else out[0] >> 20

    def error(self, code: int) -> str:
        """NVML's text for a code."""
        at = lib.dlsym(self._library, b"nvmlErrorString")
        text = ffi.cast("char *(*)(int)", at)(code) if at else ffi.NULL
        return _text(text) if text else "unknown error"

    def failed(self, step: str, code: int, uuid: str = "") -> _Failed:
        """The failure of a call, for one GPU or for all."""
        return _Failed(wire.NVML, code, step, (f"{uuid}: " if uuid else "") + self.error(code))


def described(libraries: tuple[str, ...]) -> Callable[[str, int], bytes]:
    """What describes all GPUs, for start_probe; `libraries` are tried in order."""
    return _answer(lambda: _describe(_Nvml(libraries)))


def limited(library: str, cgroup: str, limits: tuple[MemoryLimit, ...]) -> Callable[[str, int], bytes]:
    """What sets limits for the cgroup with a directory, all or none, and answers with those before."""
    return _answer(lambda: _set_limits(_Nvml((library,)), cgroup, limits))


def _answer(work: Callable[[], object]) -> Callable[[str, int], bytes]:
    def answer(step: str, error: int) -> bytes:
        try:
            told = (wire.CONFINE, error, step, "", ()) if step else (wire.OK, 0, "", "", work())
        except _Failed as failure:
            told = (*failure.args, ())
        return fastjson.write(told, b"")

    return answer


def _text(chars: Any) -> str:
    return bytes(ffi.string(chars, 255)).decode("utf-8", "replace")


def _describe(nvml: _Nvml) -> tuple[object, ...]:
    version, count, cuda = ffi.new(f"char[{_ROOM}]"), ffi.new("unsigned *"), ffi.new("int *")
    if code := nvml.call("char *, unsigned", "nvmlSystemGetDriverVersion", "", version, _STRING):
        raise nvml.failed("nvmlSystemGetDriverVersion", code)
    names = ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
    if nvml.call("int *", *names, cuda):
        cuda[0] = 0
    if code := nvml.call("unsigned *", "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount", count):
        raise nvml.failed("nvmlDeviceGetCount", code)
    if count[0] > wire.GPUS_MAX:
        many = int(ffi.cast("int", count[0]))
        raise _Failed(wire.TOO_MANY, many, "nvmlDeviceGetCount", "too many devices")
    gpus, lost, lost_mig = list[object](), list[object](), list[object]()
    for index in range(count[0]):
        _add_gpu(nvml, index, gpus, lost, lost_mig)
    return _text(version), cuda[0], nvml.path(), gpus, lost, lost_mig


def _add_gpu(nvml: _Nvml, index: int, gpus: list[object], lost: list[object], lost_mig: list[object]) -> None:
    call, uuid, device = "nvmlDeviceGetHandleByIndex", "", ffi.new("void **")
    pci = ffi.new(f"uint32_t[{_ROOM // 4}]")  # of every version: a string of 16 bytes, then domain, bus and device
    status = nvml.call("unsigned, void **", f"{call}_v2", call, index, device)
    if not status:
        call = "nvmlDeviceGetUUID"
        status, uuid = nvml.text(device[0], call)
    if not status:
        call = "nvmlDeviceGetPciInfo"
        status = nvml.call("void *, void *", f"{call}_v3", f"{call}_v2", device[0], pci)
    if status:
        lost.append((index, call, nvml.error(status)))
        return
    unnumbered, minor = nvml.number(device[0], "nvmlDeviceGetMinorNumber")
    unnamed, name = nvml.text(device[0], "nvmlDeviceGetName")
    unbranded, brand = nvml.number(device[0], "nvmlDeviceGetBrand")
    low = ffi.new("int[2]")
    if nvml.call("void *, int *, int *", "nvmlDeviceGetCudaComputeCapability", "", device[0], low, low + 1):
        low[0] = low[1] = 0
    fabric = ffi.new(f"char[{_ROOM}]")
    ffi.memmove(fabric, struct.pack("<I", _FABRIC.size | 2 << 24), 4)
    code = nvml.call("void *, void *", "nvmlDeviceGetGpuFabricInfoV", "", device[0], fabric)
    _, _, joined, _, state, _ = _FABRIC.unpack(ffi.buffer(fabric, _FABRIC.size)) if not code else (0,) * 6
    capable, enabled, parts = _mig(nvml, index, device[0], lost_mig)
    gpus.append((
        index, uuid, -1 if unnumbered else minor, tuple(pci[4:7]), "Unknown" if unnamed else name,
        0 if unbranded else brand, tuple(low), capable, enabled, parts, nvml.memory(device[0]), (state, joined),
    ))  # fmt: skip


def _mig(nvml: _Nvml, gpu: int, device: Any, lost: list[object]) -> tuple[bool, bool, list[object]]:
    """Whether a GPU can be divided and is, and its MIG devices, whose indices may have gaps."""
    mode, parts = ffi.new("unsigned[2]"), list[object]()
    if nvml.call("void *, unsigned *, unsigned *", "nvmlDeviceGetMigMode", "", device, mode, mode + 1):
        return False, False, parts
    if mode[0] != 1:
        return True, False, parts
    code, most = nvml.number(device, "nvmlDeviceGetMaxMigDeviceCount")
    call, part = "nvmlDeviceGetMigDeviceHandleByIndex", ffi.new("void **")
    for index in range(0 if code else most):
        if len(parts) == wire.MIG_MAX:
            break
        code = nvml.call("void *, unsigned, void **", call, "", device, index, part)
        if code == _NOT_FOUND:
            continue
        try:
            if code:
                raise nvml.failed(call, code)
            parts.append(_mig_device(nvml, index, part[0]))
        except _Failed as failure:
            lost.append((gpu, index, failure.args[2], failure.args[1]))
    return True, True, parts


def _mig_device(nvml: _Nvml, index: int, device: Any) -> tuple[Any, ...]:
    """Raises _Failed."""
    told = [index]
    asks: tuple[tuple[str, Callable[[Any, str], tuple[int, Any]]], ...] = (
        ("nvmlDeviceGetUUID", nvml.text),
        ("nvmlDeviceGetGpuInstanceId", nvml.number),
        ("nvmlDeviceGetComputeInstanceId", nvml.number),
    )
    for call, ask in asks:
        code, value = ask(device, call)
        if code:
            raise nvml.failed(call, code)
        told.append(value)
    return (*told, nvml.memory(device))


def _replace(nvml: _Nvml, cgroup: Any, limit: MemoryLimit) -> MemoryLimit:
    """Sets one limit, which NVML has since driver 615, and returns what was set before. Raises _Failed.

    NVML may know a cgroup without limits, or not.
    """
    device, path = ffi.new("void **"), int(ffi.cast("uintptr_t", cgroup))
    now, then = ffi.new("uint64_t[4]", (path, 0, 0, 0)), ffi.new("uint64_t[3]", (path, limit.soft, limit.hard))
    call = "nvmlDeviceGetHandleByUUID"
    code = nvml.call("char *, void **", call, "", limit.uuid.encode(), device)
    if not code:
        call = "nvmlDeviceGetMemoryLimits"
        code = nvml.call("void *, void *", f"{call}_v1", "", device[0], now)
        if code in (_NOT_FOUND, _NOT_SUPPORTED):
            code, now[1], now[2] = _SUCCESS, 0, NO_LIMIT
    if not code:
        call = "nvmlDeviceSetMemoryLimits"
        code = nvml.call("void *, void *", f"{call}_v1", "", device[0], then)
    if code:
        raise nvml.failed(call, code, limit.uuid)
    return limit.replace(soft=now[1], hard=now[2])


def _set_limits(nvml: _Nvml, cgroup: str, limits: tuple[MemoryLimit, ...]) -> list[object]:
    path, before = ffi.new("char[]", cgroup.encode("utf-8", "surrogateescape")), list[MemoryLimit]()
    try:
        for limit in limits:
            before.append(_replace(nvml, path, limit))
    except _Failed as failure:
        status, code, step, text = failure.args
        for old in reversed(before):
            try:
                _replace(nvml, path, old)
            except _Failed as again:
                text += ", and the new limit stays on " + again.args[3]
        raise _Failed(status, code, step, text) from None
    return [(one.uuid, one.soft, one.hard) for one in before]
