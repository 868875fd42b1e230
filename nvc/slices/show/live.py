"""Repeated readings of slices for `top`: utilization since the last reading, and its history."""

from __future__ import annotations

import time
from collections import deque

from nvc.discovery.containers.lookup import Lookup
from nvc.kernel import Kernel
from nvc.model.slices.slice import SliceDevice
from nvc.slices.policy.utilization import Received, reading, received
from nvc.slices.show.view import Picture
from nvc.slices.store.status import SliceStatus, statuses, with_enforcement

KEPT = 240  # looks


class LiveView:
    """Reads slices repeatedly. The first picture has no utilization: that takes two readings."""

    def __init__(self, kernel: Kernel, interval: float, devices: tuple[SliceDevice, ...] = ()) -> None:
        self._kernel = kernel
        self._interval = interval
        self._devices = devices
        self.notes: tuple[str, ...] = ()  # told with each picture
        self._names = Lookup()
        self._old = reading((), time.monotonic_ns())
        self._past: dict[tuple[str, str], deque[float]] = {}

    def look(self) -> Picture:
        """Slices now. Raises OSError."""
        everybody, warnings = statuses(self._kernel, self._names)
        everybody = with_enforcement(everybody)
        new = reading(everybody, time.monotonic_ns())
        had = received(self._old, new)
        self._old = new
        self._remember(everybody, had)
        past = {place: tuple(parts) for place, parts in self._past.items()}
        return Picture(everybody, had, past, time.time(), self._interval, (*self.notes, *warnings), self._devices)

    def _remember(self, everybody: tuple[SliceStatus, ...], had: dict[tuple[str, str], Received]) -> None:
        """The shares of slices that live, and of all slices of each device under the key ""."""
        sums: dict[tuple[str, str], float] = {}
        for tenant in everybody:
            for device in tenant.devices:
                place = tenant.entry.key, device.uuid
                if tenant.alive and place in had:
                    sums[place] = had[place].share
                    sums["", device.uuid] = sums.get(("", device.uuid), 0.0) + sums[place]
        self._past = {place: self._past.get(place, deque(maxlen=KEPT)) for place in sums}
        for place, part in sums.items():
            self._past[place].append(part)


def document(picture: Picture) -> dict[str, object]:
    """A picture for programs, each slice as `ls` has it; shares are parts of the time since the look before."""
    from nvc.slices.policy.utilization import state
    from nvc.slices.show.document import document as of_slice

    slices = []
    for tenant in picture.everybody:
        found = of_slice(tenant)
        for shown, device in zip(found["devices"], tenant.devices):
            place = tenant.entry.key, device.uuid
            had = picture.received.get(place)
            shown["state"] = state(tenant, device, had)
            shown["entitlement"] = device.entitlement
            shown["utilization"] = had.share if had else None
            shown["waited"] = had.waited if had else None
        slices.append(found)
    return {"time": round(picture.now, 3), "slices": slices}
