"""The NVIDIA driver as the timekeeper has it: found, tried out, and only then used.

A structure of the driver's interface is believed only where the self-test has seen it work, on each GPU.
"""

from __future__ import annotations

import fcntl
import glob
import os
import time
from collections.abc import Callable, Sequence

from nvc.base.errors import RmError
from nvc.daemon.keeper import selftest
from nvc.daemon.keeper.executor import Executor
from nvc.daemon.keeper.table import UNKNOWN, Table

# All of them now: where nvc is installed, modules come from an archive that a forked process no longer has open.
from nvc.discovery import discover, find, full, outer  # noqa: F401
from nvc.discovery.nvml import asking  # noqa: F401
from nvc.kernel import Kernel, rm
from nvc.kernel.tracer import Tracer
from nvc.request.config import Config, driver_options
from nvc.slices.make.calibrate import Libraries, libraries_of

CONTROL, NODES = "/dev/nvidiactl", "/dev/nvidia[0-9]*"
SIMULATED = "proc/driver/nvidia/sim/rm/nvidiactl"  # below a simulated driver's root, while its server runs
LOCK = "timekeeper"  # beside the tracer: only one carries out a plan
AGAIN = 60.0  # seconds until a GPU that has failed is tried again


class RmDriver:
    """A client of the driver. Raises RmError, also where the GPU's self-test fails."""

    def __init__(self, control: str, nodes: Sequence[str], root: str, libraries: Libraries, pins: str) -> None:
        """`control`: the path of nvidiactl. `nodes` of GPUs are held open, since the driver knows only those that
        somebody has open. `root` of the driver. `pins`: where the tracer is.
        """
        self.control = control
        self._nodes = nodes
        self._proc = os.path.join(root, "proc/driver/nvidia")
        self._rm = self._open()
        self._libraries = libraries
        self._pins = pins
        self._known: dict[str, rm.Subdevice] = {}
        self._failed: dict[str, tuple[float, str]] = {}

    def _open(self) -> rm.Rm:
        return rm.Rm.open(self.control, self._nodes, self._proc)

    def subdevice(self, uuid: str) -> rm.Subdevice:
        """A GPU by its UUID, tried out the first time. Raises RmError, TracerError."""
        if uuid not in self._known:
            since, why = self._failed.get(uuid, (0.0, ""))
            if not why or time.monotonic() - since > AGAIN:
                why = self._try(uuid)
            if why:
                raise RmError("test the GPU", uuid, why)
        return self._known[uuid]

    def _try(self, uuid: str) -> str:
        """Why time cannot be kept on a GPU; "" if it can."""
        found = [one for one in self._rm.devices() if one.uuid.lower() == uuid.lower()]
        if not found:
            return "the driver does not list it"
        tracer, other = Tracer.open(self._pins), self._open()
        try:
            tracer.exempt(os.getpid())
            result = selftest.run(tracer, other, found[0], self._libraries, self.control)
        finally:
            other.close()
            tracer.close()
        if result.ok:
            self._known[uuid] = self._rm.subdevice(found[0].instance)
        else:
            self._failed[uuid] = time.monotonic(), result.why
        return result.why

    def set_timeslice(self, fd: int, client: int, group: int, us: int) -> int:
        """The driver's status. Raises RmError."""
        return rm.set_timeslice(fd, client, group, us)

    def get_timeslice(self, fd: int, client: int, group: int) -> tuple[int, int]:
        """The driver's status, and microseconds. Raises RmError."""
        return rm.get_timeslice(fd, client, group)

    def let_go(self) -> None:
        """Start all channels that compute, as far as the tracer knows them. Raises OSError, NvcError."""
        tracer, table = Tracer.open(self._pins), Table()
        try:
            tracer.exempt(os.getpid())
            table.load(tracer.objects())
        finally:
            tracer.close()
        groups = table.groups()
        for device in self._rm.devices():
            executor = Executor(self._rm.subdevice(device.instance), self, time.monotonic_ns, lambda pid: True)
            executor.start((*groups.get(device.instance, ()), *groups.get(UNKNOWN, ())))

    def borrow(self, pid: int, number: int) -> int:
        """A copy of a process's descriptor of the control file. Raises RmError."""
        return rm.borrow(pid, number, self.control)


def opener(kernel: Kernel, config: Config, pins: str) -> Callable[[], RmDriver]:
    """What finds and opens the configured driver, in the timekeeper. Raises NvcError."""

    lock = os.path.join(os.path.dirname(pins), LOCK)
    held: list[int] = []

    def work() -> RmDriver:
        if not held:
            held.append(_hold(lock))
        used = config.replace(load_kmods=False, disable_imex_channel_creation=True)
        facts = discover(kernel, driver_options(used))
        libraries = libraries_of(facts)
        if not facts.simulated:
            return RmDriver(CONTROL, sorted(glob.glob(NODES)), "/", libraries, pins)
        control = os.path.join(facts.driver_root, SIMULATED)
        if not os.path.exists(control):
            raise RmError(
                "open the driver", control, "the simulated driver's resource manager does not run",
                "that is usual: only tests start it",
            )  # fmt: skip
        return RmDriver(control, (), facts.driver_root, libraries, pins)

    return work


def _hold(path: str) -> int:
    """Be the only timekeeper, until this process ends. Raises RmError, OSError.

    One whose nvcd was killed goes on for a moment: of two, each would undo what the other did.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not of children, as flock(2) would be
    except OSError:
        os.close(fd)
        raise RmError("keep time", path, "the timekeeper of an nvcd that has ended still does") from None
    return fd
