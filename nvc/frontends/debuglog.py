"""The debug log, in the shape of nvidia-container-cli's. Imported only where one was asked for.

A line is a level, the time in UTC, the thread id, `file:line] ` and the message:

    I1121 10:32:07.401298 4242 configure.py:33] selected GPU 0 GPU-5c1e... at 00000000:3b:00.0
"""

from __future__ import annotations

import _thread
import os
import sys
import time

from nvc.base.errors import one_line
from nvc.base.program import tell
from nvc.model.facts import HostFacts
from nvc.model.selection import Selection
from nvc.plan.ops import Plan

WARNING = "\n-- WARNING, the following logs are for debugging purposes only --\n\n"


class DebugLog:
    """A log on a descriptor. A log that cannot be written (a full disk) does not fail the run."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        tell(fd, WARNING)

    def step(self, text: str) -> None:
        self._line("I", text)

    def done(self, stage: str) -> None:
        self._line("I", f"{stage}: done")

    def error(self, text: str) -> None:
        self._line("E", text)

    def facts(self, facts: HostFacts) -> None:
        """What discovery found, a line each."""
        cuda = facts.cuda_version or "unknown"
        self._line("I", f"driver {facts.driver_label} in {facts.driver_root}, CUDA {cuda}")
        for gpu in facts.gpus:
            self._line("I", f"gpu {gpu.index} {gpu.uuid} minor {gpu.minor} at {gpu.bus_id}: {gpu.name}")
            for mig in gpu.mig:
                self._line("I", f"mig device {gpu.index}:{mig.index} {mig.uuid}")
        for library in (*facts.libraries, *facts.libraries32):
            self._line("I", f"library {library.path} ({library.kind}, {library.arch})")
        for kind, found in (("binary", facts.binaries), ("firmware", facts.firmwares), ("ipc", facts.ipcs)):
            for entry in found:
                self._line("I", f"{kind} {entry.path}")
        for one in facts.controls:
            self._line("I", f"device node {one.node.path} {one.node.major}:{one.node.minor}")
        for warning in facts.warnings:
            self._line("W", warning)

    def selection(self, selection: Selection) -> None:
        """What the selectors mean on this host."""
        for gpu in selection.gpus:
            self._line("I", f"selected gpu {gpu.index} {gpu.uuid} at {gpu.bus_id}")
        for gpu, mig in selection.mig:
            self._line("I", f"selected mig device {gpu.index}:{mig.index} {mig.uuid}")
        rights = [name for name in ("mig_config", "mig_monitor") if getattr(selection, name)]
        channels = [f"imex channel {channel}" for channel in selection.imex_channels]
        for text in rights + channels:
            self._line("I", f"selected {text}")

    def plan(self, plan: Plan) -> None:
        """Every operation that is about to be applied."""
        from nvc.plan.describe import describe

        for text in describe(plan).splitlines():
            self._line("I", f"plan: {text}")

    def warnings(self, warnings: tuple[str, ...]) -> None:
        """What a reader should know although the run succeeded."""
        for warning in warnings:
            self._line("W", warning)

    def _line(self, level: str, text: str) -> None:
        now = time.time_ns()
        stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(now // 10**9))
        frame = sys._getframe(2)
        where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        micro = now // 1000 % 10**6
        tell(self._fd, f"{level}{stamp}.{micro:06d} {_thread.get_native_id()} {where}] {one_line(text)}\n")
