"""Reads and changes the limits of one slice while its processes run."""

from __future__ import annotations

import os

from nvc.base.files import closing
from nvc.model.request import Timing
from nvc.model.slices import quota
from nvc.model.slices.entry import (
    FILE_LEASE_TIME,
    Entry,
    RegistryError,
    announce,
    open_own,
    text_of,
    write_about,
)
from nvc.model.slices.policy import FIRST
from nvc.model.slices.quota import QuotaDevice, QuotaError
from nvc.slices.policy.entitlement import Demand
from nvc.slices.store import registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel
    from nvc.model.slices.entry import EntryDevice
    from nvc.slices.store.status import SliceDeviceStatus

LOCK_TIME = 0.2  # seconds


def read_quota(entry: Entry, patience: float = FILE_LEASE_TIME) -> tuple[QuotaDevice, ...]:
    """Read the current limits of a slice, with the registry's UUIDs. Raises QuotaError, OSError.

    `patience`: seconds for who holds a lease on the file.
    """
    with closing(open_own(entry.quota, seconds=patience)) as fd:
        return named(quota.read(fd), entry)


def named(found: tuple[QuotaDevice, ...], entry: Entry) -> tuple[QuotaDevice, ...]:
    """The devices of a quota with the registry's UUIDs. Raises QuotaError if the devices differ.

    A device that is being added, which the registry does not have yet, keeps the UUID of the quota.
    """
    renamed = []
    for place, limit in enumerate(found):
        name = entry.devices[place].uuid if place < len(entry.devices) else limit.uuid
        if quota.uuid_bytes(name) != quota.uuid_bytes(limit.uuid):
            raise QuotaError("read quota", entry.quota, "its devices are not those of the slice")
        renamed.append(limit.replace(uuid=name))
    return tuple(renamed)


def demand_of(entry: Entry, device: QuotaDevice | SliceDeviceStatus) -> Demand:
    """What a slice asks for of a device, as `in_force` takes it."""
    age = entry.created, entry.start
    asked = next((one.asked_policy for one in entry.devices if one.uuid == device.uuid), device.policy)
    return Demand(entry.key, device.paused or device.denied, age, asked == FIRST, **device.only(Timing))


def sound_quota(
    kernel: Kernel, entry: Entry, locked: bool, patience: float = FILE_LEASE_TIME
) -> tuple[tuple[QuotaDevice, ...], bool]:
    """Read the current limits, and end the unfinished change of a writer that was killed; whether there was one.

    `locked`: the caller holds the registry's lock; otherwise this waits up to LOCK_TIME for it. nvcd repairs quotas
    that it has open with `finish`; code that changes a quota under the lock calls `quota.finish`.

    Raises QuotaError for a quota that cannot be repaired, OSError.
    """
    try:
        return read_quota(entry, patience), False
    except QuotaError:
        with closing(open_own(entry.quota, os.O_RDWR, patience)) as fd:
            if not finish(kernel, fd, 0 if locked else LOCK_TIME):
                raise
    return read_quota(entry, patience), True


def finish(kernel: Kernel, fd: int, seconds: float) -> bool:
    """End the unfinished change of an open quota; whether there was one.

    Waits up to `seconds` for the registry's lock, which excludes other writers, and returns False without it. 0:
    the caller holds the lock.
    """
    try:
        lock = registry.locked(kernel, seconds) if seconds else -1
    except RegistryError:
        return False
    try:
        return quota.finish(fd)
    except (OSError, QuotaError):
        return False
    finally:
        if lock >= 0:
            os.close(lock)


def edit(
    entry: Entry, limits: tuple[QuotaDevice, ...], devices: tuple[EntryDevice, ...], **more: str
) -> Entry:
    """Write new limits of a slice, and what else the registry knows of it. The caller holds the lock.

    Raises OSError.
    """
    changed = entry.replace(devices=devices, **more)
    with closing(open_own(entry.quota, os.O_RDWR)) as fd:
        quota.write(fd, limits)
    if changed != entry:
        write_about(entry.directory, text_of(changed))
    announce(entry.directory)
    return changed
