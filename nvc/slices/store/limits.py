"""The limits of one slice as they are now: read, and changed while its processes run."""

from __future__ import annotations

import os

from nvc.slices.model import quota
from nvc.slices.model.entry import announce, open_own
from nvc.slices.model.quota import QuotaDevice, QuotaError
from nvc.slices.store import registry
from nvc.slices.store.registry import Entry, RegistryError, text_of, write_about

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel

LOCK_TIME = 0.2  # seconds


def read_quota(entry: Entry) -> tuple[QuotaDevice, ...]:
    """The limits of now, devices named as the registry has them. Raises QuotaError, OSError."""
    fd = open_own(entry.quota)
    try:
        return named(quota.read(fd), entry)
    finally:
        os.close(fd)


def named(found: tuple[QuotaDevice, ...], entry: Entry) -> tuple[QuotaDevice, ...]:
    """Devices of a quota with the names that the registry has for them. Raises QuotaError where it has others.

    What the registry does not have yet, while a slice gets one more, keeps the name that the quota gives it.
    """
    renamed = []
    for place, limit in enumerate(found):
        name = entry.devices[place].uuid if place < len(entry.devices) else limit.uuid
        if quota.uuid_bytes(name) != quota.uuid_bytes(limit.uuid):
            raise QuotaError("read quota", entry.quota, "its devices are not those of the slice")
        renamed.append(limit.replace(uuid=name))
    return tuple(renamed)


def sound_quota(kernel: Kernel, entry: Entry, locked: bool) -> tuple[tuple[QuotaDevice, ...], bool]:
    """The limits of now, and whether a change whose writer was killed had to be ended for that.

    `locked`: the caller holds the registry's lock; else it is waited for a little. This is the one place where a
    quota is repaired. Raises QuotaError for one that cannot be, OSError.
    """
    try:
        return read_quota(entry), False
    except QuotaError:
        fd = open_own(entry.quota, os.O_RDWR)
        try:
            if not finish(kernel, fd, 0 if locked else LOCK_TIME):
                raise
        finally:
            os.close(fd)
    return read_quota(entry), True


def finish(kernel: Kernel, fd: int, seconds: float) -> bool:
    """End the change of an open quota whose writer was killed; whether there was one.

    Under the lock there is no other writer: it is waited for so long, and nothing is done without it. 0: the caller
    holds it.
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


def edit(entry: Entry, devices: tuple[QuotaDevice, ...], asked: tuple[int, ...]) -> Entry:
    """Write other limits of a slice, and the policies that it asks for. The caller holds the lock.

    Raises OSError.
    """
    changed: Entry = entry.replace(
        devices=tuple(
            device.replace(asked_policy=policy) for device, policy in zip(entry.devices, asked, strict=True)
        )
    )
    fd = open_own(entry.quota, os.O_RDWR)
    try:
        quota.write(fd, devices)
    finally:
        os.close(fd)
    if changed != entry:
        write_about(entry.directory, text_of(changed))
    announce(entry.directory)
    return changed
