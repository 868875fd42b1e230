"""The limits of one slice as they are now: read, and changed while its processes run."""

from __future__ import annotations

import os

from nvc.vgpu import quota
from nvc.vgpu.quota import QuotaDevice, QuotaError
from nvc.vgpu.registry import Entry, RegistryError, locked, text_of, write_about

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel

LOCK_TIME = 0.2  # seconds


def finished(kernel: Kernel, entry: Entry) -> bool:
    """Whether the quota of a slice was left half changed, and is sound now."""
    try:
        fd = os.open(entry.quota, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return finish(kernel, fd, LOCK_TIME)
    finally:
        os.close(fd)


def read_quota(entry: Entry) -> tuple[QuotaDevice, ...]:
    """The limits of now, devices named as the registry has them. Raises QuotaError, OSError."""
    fd = os.open(entry.quota, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = quota.read(fd)
    finally:
        os.close(fd)
    return tuple(limit.replace(uuid=device.uuid) for limit, device in zip(found, entry.devices))


def finish(kernel: Kernel, fd: int, seconds: float) -> bool:
    """End the change of an open quota whose writer was killed; whether there was one.

    Under the lock there is no other writer: it is waited for so long, and nothing is done without it.
    """
    try:
        lock = locked(kernel, seconds)
    except RegistryError:
        return False
    try:
        return quota.finish(fd)
    except (OSError, QuotaError):
        return False
    finally:
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
    fd = os.open(entry.quota, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        quota.write(fd, devices)
    finally:
        os.close(fd)
    if changed != entry:
        write_about(entry.directory, text_of(changed))
    return changed
