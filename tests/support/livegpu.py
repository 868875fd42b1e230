"""The model of a GPU beside the real clock, for the timekeeper in a process of its own.

What is done to it is written to a file, since the model is in that process.
"""

from __future__ import annotations

import os
import time

from nvc.daemon.keeper.plan import DevicePlan, Group, Plan, SlicePlan

from .gpumodel import MS, Gpu, Subdevice, always

UUID = "GPU-00000000-1111-2222-3333-444444444440"


class LiveGpu(Gpu):
    """One tenant that always works."""

    def __init__(self, path: str, pid: int) -> None:
        super().__init__()
        self.path = path
        self.now = time.monotonic_ns()
        self.context(pid, always(), channels=2, client=1)

    def call(self, name: str, takes: int) -> int | None:
        """Note the call, and let the time pass that has passed."""
        self.wait(max(time.monotonic_ns(), self.now))
        if name in ("start", "stop"):
            with open(self.path, "a", encoding="ascii") as file:
                file.write(f"{name} {os.getpid()}\n")
        return self.status

    def subdevice(self, uuid: str) -> Subdevice:
        """The one there is."""
        return Subdevice(self)

    def set_timeslice(self, fd: int, client: int, group: int, us: int) -> int:
        """Nobody looks."""
        self.length = us
        return 0

    def get_timeslice(self, fd: int, client: int, group: int) -> tuple[int, int]:
        """What was set."""
        return 0, self.length


def one_slice(cap: int = 0, stopped: bool = False) -> Plan:
    """A plan for that tenant; `cap` in percent of a period of 20 ms."""
    group = Group(1, 0x5C001000, os.getpid(), 3, (0x5C001001, 0x5C001002))
    quota = cap * 20 * MS // 100
    return Plan((DevicePlan(UUID, (SlicePlan("a", (group,), 4000, stopped, quota, 20 * MS, quota),)),))
