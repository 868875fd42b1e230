"""A process without rights that runs kernels, for the self-test: libcuda by ctypes, chrooted to the driver root."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Callable

from nvc.base.errors import RmError
from nvc.slices.make.calibrate import Cuda, Libraries, begun

#: A loop that no compiler can shorten, as in nvc-spin. A simulated GPU takes a round for a nanosecond.
SPIN = (
    b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry sim_spin_for(.param .u64 rounds)\n{\n"
    b".reg .pred %p; .reg .u64 %n, %i; .reg .u32 %x; .shared .align 4 .u32 s;\n"
    b"ld.param.u64 %n, [rounds];\nmov.u64 %i, 0;\nmov.u32 %x, 1;\nL:\nst.volatile.shared.u32 [s], %x;\n"
    b"ld.volatile.shared.u32 %x, [s];\nadd.u64 %i, %i, 1;\nsetp.lt.u64 %p, %i, %n;\n@%p bra L;\nret;\n}\n"
)
PATIENCE = 10.0  # seconds until it runs


def failed(cause: str) -> RmError:
    """Why it runs nothing."""
    return RmError("run a kernel of our own", "", cause)


class Runner:
    """The process. `work` is handed the kernel, and calls its second argument once it runs."""

    def __init__(
        self, libraries: Libraries, uuid: str, work: Callable[[Spinner, Callable[[], None]], None]
    ) -> None:
        self.pid, self._reply = begun(libraries, uuid, lambda say: work(Spinner(libraries), lambda: say("ok")))

    def __enter__(self) -> Runner:
        """Wait until it runs. Raises RmError."""
        try:
            if not select.select([self._reply], [], [], PATIENCE)[0]:
                raise failed("the driver does not answer")
            said = os.read(self._reply, 256).decode("utf-8", "replace")
            if said != "ok":
                raise failed(said or "the process has ended")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._reply)


class Spinner(Cuda):
    """The kernel, in that process, where nothing is imported. Raises OSError."""

    def __init__(self, libraries: Libraries) -> None:
        super().__init__(libraries)
        self.kernel = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self.module), SPIN)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), self.module, b"sim_spin_for")

    def run(self, rounds: int) -> None:
        """Run a kernel of so many rounds of its loop to its end."""
        value = ctypes.c_uint64(rounds)
        values = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self.call("cuLaunchKernel", self.kernel, 1, 1, 1, 32, 1, 1, 0, None, values, None)
        self.call("cuCtxSynchronize")
