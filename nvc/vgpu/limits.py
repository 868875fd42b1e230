"""The limits of one slice as they are now: read, and changed while its processes run."""

from __future__ import annotations

import os

from nvc.vgpu import quota
from nvc.vgpu.quota import QuotaDevice
from nvc.vgpu.registry import Entry, text_of, write_about


def read_quota(entry: Entry) -> tuple[QuotaDevice, ...]:
    """The limits of now, devices named as the registry has them. Raises QuotaError, OSError."""
    fd = os.open(entry.quota, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = quota.read(fd)
    finally:
        os.close(fd)
    return tuple(limit.replace(uuid=device.uuid) for limit, device in zip(found, entry.devices))


def edit(entry: Entry, devices: tuple[QuotaDevice, ...], asked: tuple[int, ...]) -> Entry:
    """Write other limits of a slice, and the policies that it asks for. The caller holds the lock.

    Raises OSError.
    """
    changed: Entry = entry.replace(
        devices=tuple(
            device.replace(asked_policy=policy) for device, policy in zip(entry.devices, asked, strict=True)
        )
    )
    fd = os.open(entry.quota, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        quota.write(fd, devices)
    finally:
        os.close(fd)
    if changed != entry:
        write_about(entry.directory, text_of(changed))
    return changed
