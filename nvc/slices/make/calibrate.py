"""Measures the memory of a CUDA context: one process makes a context, another asks NVML what that process has.

Both are forked, have no rights, and are chrooted to the driver root. Other users of the device do not matter as
long as there is room: only the figure of the one process is read.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

from nvc.base.errors import PermissionDenied
from nvc.base.value import Value
from nvc.model.facts import HostFacts
from nvc.model.request import SliceRequest
from nvc.model.selection import Selection
from nvc.model.slices.slice import SliceDevice, resolve
from nvc.slices.make.calibration import CalibrationError, Measurement
from nvc.slices.make.confine import fork_nobody
from nvc.slices.make.nvml import PROCESSES_MAX, ProcessInfo, load

MIB = 1 << 20
#: The smallest module there is: what loading any takes.
PTX = b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n"


class Libraries(Value):
    """Where the driver's libraries are, inside `root`, which is the driver root."""

    root: str  # `/` for a simulated driver: its root has nothing but the driver
    cuda: str
    nvml: str


def calibrate(facts: HostFacts, selection: Selection, wanted: SliceRequest) -> tuple[Measurement, ...]:
    """One measurement for each kind of device in the selection.

    Raises CalibrationError, PermissionDenied.
    """
    if os.geteuid() != 0:
        raise PermissionDenied("measure contexts", cause="only root can")
    libraries = libraries_of(facts)
    measured: dict[tuple[str, int], Measurement] = {}
    for device in resolve(facts, selection, wanted):
        part = device.memory // MIB if ":" in device.index else 0
        if (device.name, part) not in measured:
            context, module = _measure(libraries, device)
            measured[device.name, part] = Measurement(facts.driver_label, device.name, part, context, module)
    return tuple(measured.values())


def libraries_of(facts: HostFacts) -> Libraries:
    """Where a driver's libraries are. Raises CalibrationError for one that lacks them."""
    paths = {library.soname: library.path for library in facts.libraries}
    if not {"libcuda.so.1", "libnvidia-ml.so.1"} <= set(paths):
        raise CalibrationError(
            "find libraries", facts.driver_root, "the driver lacks libcuda or libnvidia-ml",
            "reinstall the driver, or name its root with --root",
        )
    cuda, nvml = paths["libcuda.so.1"], paths["libnvidia-ml.so.1"]
    if facts.simulated:
        return Libraries("/", f"{facts.driver_root}{cuda}", f"{facts.driver_root}{nvml}")
    return Libraries(facts.driver_root, cuda, nvml)


def _measure(libraries: Libraries, device: SliceDevice) -> tuple[int, int]:
    """The bytes of a context, and the bytes that the first module adds. Raises CalibrationError."""
    ask_read, ask_write = os.pipe2(os.O_CLOEXEC)
    reply_read, reply_write = os.pipe2(os.O_CLOEXEC)
    holder = fork_nobody(
        lambda: _hold(libraries, device, ask_read, reply_write), libraries.root, ask_write, reply_read
    )
    os.close(ask_read)
    os.close(reply_write)
    try:
        found = []
        for _ in ("context", "module"):
            answer = os.read(reply_read, 256)
            if answer != b"ok":
                cause = answer.decode("utf-8", "replace") or "the process that makes a context has ended"
                raise CalibrationError(
                    "make a context", device.uuid, cause, "end other programs on the device"
                )
            found.append(_used_by(libraries, device, holder))
            os.write(ask_write, b"on")
        return found[0], max(0, found[1] - found[0])
    finally:
        os.close(ask_write)
        os.close(reply_read)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def _hold(libraries: Libraries, device: SliceDevice, ask: int, reply: int) -> None:
    """Make a context, then load a module, and wait after each."""
    os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid
    os.putenv("CUDA_VISIBLE_DEVICES", device.uuid)
    try:
        cuda = ctypes.CDLL(libraries.cuda)
    except OSError as error:
        os.write(reply, str(error).encode()[:256])
        return
    handle, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    steps: tuple[tuple[str, Callable[[], int]], ...] = (
        ("cuInit", lambda: cuda.cuInit(0)),
        ("cuDeviceGet", lambda: cuda.cuDeviceGet(ctypes.byref(handle), 0)),
        ("cuDevicePrimaryCtxRetain", lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)),
        ("cuCtxSetCurrent", lambda: cuda.cuCtxSetCurrent(context)),
    )
    for name, step in steps:
        code = step()
        if code:
            os.write(reply, f"{name}: CUDA error {code}".encode())
            return
    os.write(reply, b"ok")
    os.read(ask, 2)
    # One that cannot be loaded (no compiler for it, or a simulated driver that knows no PTX) adds nothing.
    cuda.cuModuleLoadData(ctypes.byref(module), PTX)
    os.write(reply, b"ok")
    os.read(ask, 2)
    os.read(ask, 2)  # until it is closed, or we are killed


def _used_by(libraries: Libraries, device: SliceDevice, pid: int) -> int:
    """Bytes that NVML shows for a process on a device. Raises CalibrationError."""
    read, write = os.pipe2(os.O_CLOEXEC)
    asker = fork_nobody(lambda: _ask(libraries, device, pid, write), libraries.root, read)
    os.close(write)
    with os.fdopen(read, "rb") as reply:
        answer = reply.read(256).decode("utf-8", "replace")
    os.waitpid(asker, 0)
    if not answer.isdigit():
        raise CalibrationError(
            "ask NVML", device.uuid, answer or "the process that asks has ended",
            "it lists processes only in the host's pid namespace",
        )  # fmt: skip
    return int(answer)


def _ask(libraries: Libraries, device: SliceDevice, pid: int, reply: int) -> None:
    try:
        nvml = load(libraries.nvml)
    except OSError as error:
        os.write(reply, str(error).encode()[:256])
        return
    handle = ctypes.c_void_p()
    count = ctypes.c_uint(PROCESSES_MAX)
    processes = (ProcessInfo * PROCESSES_MAX)()
    code = nvml.nvmlDeviceGetHandleByUUID(device.uuid.encode(), ctypes.byref(handle))
    code = code or nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
    if code:
        os.write(reply, f"NVML error {code}".encode())
        return
    for process in processes[: min(count.value, PROCESSES_MAX)]:
        if process.pid == pid:
            os.write(reply, str(process.used).encode())
            return
    os.write(reply, f"process {pid} is not listed".encode())
