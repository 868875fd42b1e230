"""Measures the utilization of devices by slices over some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nvc.base.value import Value
from nvc.kernel import Kernel
from nvc.kernel.clocks import host_monotonic
from nvc.model.slices.ledger import Budget
from nvc.model.slices.quota import QuotaError
from nvc.slices.policy.utilization import Reading, received
from nvc.slices.store.limits import read_quota
from nvc.slices.store.liveness import budgets_of
from nvc.slices.store.status import SliceStatus, statuses, with_enforcement


class Track(Value):
    """One slice on one device; parts of the time."""

    key: str
    name: str  # of slice and device
    uuid: str
    points: tuple[tuple[float, float], ...]  # seconds since the beginning, received since the point before
    entitlement: tuple[tuple[float, float], ...]
    mean: float

    def document(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "name": self.name,
            "uuid": self.uuid,
            "mean": self.mean,
            "points": [list(point) for point in self.points],
            "entitlement": [list(point) for point in self.entitlement],
        }


def watch(
    kernel: Kernel,
    keys: tuple[str, ...],
    seconds: float,
    interval: float,
    tell: Callable[[float, int], None],
) -> tuple[tuple[Track, ...], float]:
    """Measure the slices with these keys, or all, for a time; their utilization in each interval.

    Slices that come are taken in with the next second, since finding them costs more than asking them. An
    interrupt ends it with what was read until then: the seconds that were looked come back too. `tell` is called
    after each reading with the seconds since the beginning and the number of slices that were measured until then.
    """
    begin = time.monotonic_ns()
    old: Reading | None = None
    everybody: tuple[SliceStatus, ...] = ()
    found = _Tracks()
    looked, count = 0.0, max(int(seconds / interval + 0.5), 1)
    for number in range(count + 1):
        try:
            time.sleep(max(begin + int(number * interval * 1e9) - time.monotonic_ns(), 0) / 1e9)
        except KeyboardInterrupt:
            seconds = max(round((number - 1) * interval, 3), interval)
            break
        if number == 0 or number * interval - looked >= 1:
            looked = number * interval
            everybody = with_enforcement(statuses(kernel)[0])
            found.meet(everybody)
        new = _read(kernel, tuple(tenant for tenant in everybody if not keys or tenant.entry.key in keys))
        if old is not None:
            found.add(old, new, begin)
        old = new
        tell(number * interval, len(found.readings))
    return found.tracks(), seconds


class _Tracks:
    """What is known of each slice on each device, by its key and the device's UUID."""

    def __init__(self) -> None:
        #: Of each reading: seconds since the beginning, received, the entitlement, and the time since the last.
        self.readings: dict[tuple[str, str], list[tuple[float, float, float | None, int]]] = {}
        self._entitled: dict[tuple[str, str], float | None] = {}  # of now
        self._names: dict[tuple[str, str], str] = {}

    def meet(self, everybody: tuple[SliceStatus, ...]) -> None:
        self._entitled.clear()
        for tenant in everybody:
            for device in tenant.devices:
                place = tenant.entry.key, device.uuid
                self._names[place] = f"{tenant.name} on {device.index}"
                self._entitled[place] = device.entitlement

    def add(self, old: Reading, new: Reading, begin: int) -> None:
        """Take in what slices received between two readings; `begin` is the time 0 of the points."""
        at, passed = (new.at - begin) / 1e9, new.at - old.at
        for place, had in received(old, new).items():
            self.readings.setdefault(place, []).append((at, had.share, self._entitled.get(place), passed))

    def tracks(self) -> tuple[Track, ...]:
        return tuple(
            Track(
                key,
                self._names[key, uuid],
                uuid,
                tuple((at, share) for at, share, _, _ in found),
                tuple((at, entitled) for at, _, entitled, _ in found if entitled is not None),
                sum(share * passed for _, share, _, passed in found) / max(sum(one[-1] for one in found), 1),
            )
            for (key, uuid), found in self.readings.items()
        )


def _kept(tenant: SliceStatus, devices: int) -> tuple[Budget | None, ...]:
    """What a slice had of each of its devices by the driver's log; None where nvcd does not keep time now."""
    now = host_monotonic()
    try:
        found = tuple(device.kept(now) for device in read_quota(tenant.entry, 0))
    except (OSError, QuotaError):  # its own figures are shown then, if it has any
        found = ()
    return (*found, *(None,) * devices)[:devices]


def _read(kernel: Kernel, chosen: tuple[SliceStatus, ...]) -> Reading:
    found = {}
    for tenant in chosen:
        uuids = [device.uuid for device in tenant.devices]
        left_out = {device.uuid for device in tenant.devices if device.hidden or not device.measured}
        kept = _kept(tenant, len(uuids))
        own = budgets_of(kernel, tenant.entry, tenant.pids, len(uuids)).budgets if None in kept else ()
        for uuid, by_nvcd, by_itself in zip(uuids, kept, own or kept):
            budget = by_nvcd or by_itself
            if uuid not in left_out and budget is not None:
                found[tenant.entry.key, uuid] = budget
    return Reading(time.monotonic_ns(), found)
