"""Measures the memory of a CUDA context: a process makes one, and asks NVML what it has itself.

It is forked, has no rights, and is chrooted to the driver root. Other users of the device do not matter as long as
there is room: only the figure of the one process is read.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

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


class Cuda:
    """The driver's libcuda in a process that `begun` has begun, and a context that is current. Raises OSError."""

    def __init__(self, libraries: Libraries) -> None:
        self.library = ctypes.CDLL(libraries.cuda)
        handle, context, self.module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(handle), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises OSError."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise OSError(f"{name}: CUDA error {code}")


def begun(libraries: Libraries, uuid: str, work: Callable[[Callable[[str], None]], None]) -> tuple[int, int]:
    """Begin a process that sees one device: its number, and a descriptor with what `work` says, or why not.

    Raises OSError.
    """
    read, write = os.pipe2(os.O_CLOEXEC)

    def say(text: str) -> None:
        os.write(write, text.encode()[:256])

    def serve() -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        os.putenv("CUDA_VISIBLE_DEVICES", uuid)
        try:
            work(say)
        except OSError as error:
            say(str(error))

    pid = fork_nobody(serve, libraries.root, read)
    os.close(write)
    return pid, read


def _measure(libraries: Libraries, device: SliceDevice) -> tuple[int, int]:
    """The bytes of a context, and the bytes that the first module adds. Raises CalibrationError."""
    pid, read = begun(libraries, device.uuid, lambda say: say(_figures(libraries, device.uuid)))
    with os.fdopen(read, "rb") as reply:
        answer = reply.read(256).decode("utf-8", "replace")
    os.waitpid(pid, 0)
    numbers = answer.split()
    if not all(number.isdigit() for number in numbers) or len(numbers) != 2:
        raise CalibrationError(
            "make a context", device.uuid, answer or "the process that makes a context has ended",
            "end other programs on the device; NVML lists processes only in the host's pid namespace",
        )  # fmt: skip
    return int(numbers[0]), max(0, int(numbers[1]) - int(numbers[0]))


def _figures(libraries: Libraries, uuid: str) -> str:
    """The bytes with a context, and those with a module too. Raises OSError."""
    cuda, nvml = Cuda(libraries), load(libraries.nvml)
    before = _used(nvml, uuid)
    # One that cannot be loaded (no compiler for it, or a simulated driver that knows no PTX) adds nothing.
    cuda.library.cuModuleLoadData(ctypes.byref(cuda.module), PTX)
    return f"{before} {_used(nvml, uuid)}"


def _used(nvml: Any, uuid: str) -> int:
    """Bytes that NVML shows for this process on a device. Raises OSError."""
    device, count = ctypes.c_void_p(), ctypes.c_uint(PROCESSES_MAX)
    processes = (ProcessInfo * PROCESSES_MAX)()
    code = nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device))
    code = code or nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), processes)
    if code:
        raise OSError(f"NVML error {code}")
    own = [one.used for one in processes[: min(count.value, PROCESSES_MAX)] if one.pid == os.getpid()]
    if not own:
        raise OSError(f"NVML does not list process {os.getpid()}")
    return int(own[0])
