"""What the timekeeper knows of one slice on one device."""

from __future__ import annotations

from nvc.daemon.keeper.caps import Cap
from nvc.daemon.keeper.plan import Group, SlicePlan

Made = tuple[int, int, int, tuple[int, ...]]  # client, group, serial, channels


def made_of(plan: SlicePlan) -> dict[int, tuple[Made, ...]]:
    """What each process has in the plan, if all of it is there: the tracer has seen its clients begin."""
    found: dict[int, list[Group]] = {}
    for group in plan.groups:
        for pid in {group.pid, group.opener or group.pid}:
            found.setdefault(pid, []).append(group)
    return {
        pid: tuple((one.client, one.handle, one.serial, one.channels) for one in few)
        for pid, few in found.items()
        if all(one.opener for one in few)
    }


class SliceState:
    """What the timekeeper knows of one slice."""

    def __init__(self, plan: SlicePlan) -> None:
        self.plan = plan
        self.cap: Cap | None = None
        self.pids: dict[int, int] = {}  # its processes; when those that left are forgotten, else NEVER
        self.made: dict[int, tuple[Made, ...]] = {}  # of each of its processes in the plan, as far as that is whole
        self.since: dict[int, int] = {}  # when that last changed
        self.broke: dict[int, int] = {}  # what each had since then while it was stopped
        self.had = self.doubtful = self.stopped = self.refused = self.retimed = 0
        self.seen = 0  # what it had when its timeslices were last read back
        self.off = 0  # since when it is stopped; 0: it is not
        self.tried = 0  # until when a stop that failed is not repeated
        self.fresh = True  # never started by this timekeeper: an earlier one may have stopped it
