"""Slices for claims of Kubernetes: made before their containers, which share one slice.

Such a slice has a ledger on the host, in a small file system of its own, and lives until it is released.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time

from nvc.base.files import closing
from nvc.kernel import Kernel
from nvc.model.request import SWAP
from nvc.model.slices import layout, ledger, quota
from nvc.model.slices.entry import (
    Entry,
    RegistryError,
    is_remnant,
    open_own,
    read_entry,
    text_of,
    write_about,
)
from nvc.model.slices.slice import Slice
from nvc.plan.ops import Ledger
from nvc.slices.policy.policies import with_policies
from nvc.slices.store import registry
from nvc.slices.store.liveness import living
from nvc.slices.store.registry import LEDGER, READY

STEP = "make a slice for a claim"
_DETACH, _NOFOLLOW = 2, 8  # umount2(2)
#: Options of a ledger's mount: of mount_setattr(2), those with the same number in mount(2) alone.
_FLAGS = Ledger.attributes
#: Where SELinux is enabled, and the type of what any container may write.
_SELINUX, _LABEL = "/sys/fs/selinux/enforce", "system_u:object_r:container_file_t:s0"


def key_of(holds: str) -> str:
    """The key of the slice with these holds. Its first part is larger than the number of any mount namespace."""
    digest = hashlib.sha256(holds.encode()).hexdigest()
    return f"1{digest[:8]}-{digest[8:16]}-{digest[16:24]}-{digest[24:40]}"


def hold(kernel: Kernel, slice: Slice, libs_dir: str, claim: str) -> None:
    """Make the slice with the holds `slice.holds`, or bring what is there up to date: it may be in use.

    Of `slice` only devices, isolation and holds are used. Raises RegistryError, PolicyError, InitializationError.
    """
    base, key = registry.base_directory(), key_of(slice.holds)
    path = f"{base}/{key}"
    lock = registry.locked(kernel)
    try:
        registry.check_room(kernel, key, slice)
        limits = tuple(registry.quota_device(device) for device in with_policies(slice.devices))
        devices = tuple(registry.entry_device(device) for device in slice.devices)
        entry = Entry(
            key, "", 0, 0, "", libs_dir, int(time.time()), devices, slice.isolation, claim=claim, holds=slice.holds,
            **registry.texts_of(slice),
        )  # fmt: skip
        os.fchmod(lock, 0o711)
        if _is_there(path) and not is_remnant(path):
            _update(path, limits, entry)
        else:
            registry.remove(path)
            registry.make(path, limits, text_of(entry), entry.suspend_by == SWAP)
        mount(f"{path}/{LEDGER}")
    except OSError as error:
        raise RegistryError.of(STEP, error.filename or path, error) from None
    finally:
        os.close(lock)


def release(kernel: Kernel, uid: str) -> None:
    """Remove all slices of a claim. Raises RegistryError, InitializationError."""
    base = registry.base_directory()
    lock = registry.locked(kernel)
    try:
        for entry in _readable(base):
            if entry.claim and _is_for(entry, uid):
                registry.remove(entry.directory)
    except OSError as error:
        raise RegistryError.of("remove slice", error.filename or base, error) from None
    finally:
        os.close(lock)


def in_use(kernel: Kernel, uid: str) -> bool:
    """Whether processes are in a slice of the claim. Raises RegistryError where entries cannot be read."""
    base = registry.base_directory()
    try:
        entries = tuple(entry for entry in registry.sound_entries(base) if _is_for(entry, uid))
    except OSError as error:
        raise RegistryError.of("list slices", base, error) from None
    return any(life.pids for life in living(kernel, entries).values()) if entries else False


def held_uids() -> set[str]:
    """UIDs of the claims that slices were made for. Raises InitializationError, RegistryError."""
    return {one.rpartition("-")[0] for entry in _listed() if entry.claim for one in entry.holds.split()}


def holds_by_slice() -> dict[str, list[str]]:
    """What each slice has of claims: UID-PLACE. Raises InitializationError, RegistryError."""
    return {entry.key: entry.holds.split() for entry in _listed() if entry.holds}


def _listed() -> list[Entry]:
    base = registry.base_directory()
    try:
        return _readable(base)
    except OSError as error:
        raise RegistryError.of("list slices", base, error) from None


def _readable(base: str) -> list[Entry]:
    """The entries that can be read. `nvc-cli vgpu ls` names the others, and nvc refuses what depends on them;
    kubelet must still be able to end other pods."""
    return [entry for _, entry in registry.entries(base) if not isinstance(entry, RegistryError)]


def _is_for(entry: Entry, uid: str) -> bool:
    return any(one.startswith(f"{uid}-") for one in entry.holds.split())


def _update(path: str, limits: tuple[quota.QuotaDevice, ...], entry: Entry) -> None:
    """Update limits after a change of nvc or of the device policy. Containers keep the file that they see."""
    old = read_entry(path)
    with closing(open_own(f"{path}/quota", os.O_RDWR)) as fd:
        quota.finish(fd)
        now = {quota.uuid_bytes(device.uuid): device for device in quota.read(fd)}
        wanted = tuple(
            device.marked_as(known)
            if (known := now.get(quota.uuid_bytes(device.uuid)))
            else device
            for device in limits
        )
        if wanted != quota.read(fd):
            quota.write(fd, wanted)
    kept = {"created": old.created, "container": old.container, "bundle": old.bundle, "rootfs": old.rootfs}
    write_about(path, text_of(entry.replace(**kept)))


def mount(path: str) -> None:
    """Mount a file system with room for the ledger alone, unless a whole one is there. Raises OSError."""
    ready = f"{os.path.dirname(path)}/{READY}"
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        if _is_there(ready) and os.lstat(path).st_dev != os.lstat(os.path.dirname(path)).st_dev:
            return  # whatever its tenants have made of it: a second one would give them as much again
        unmount(path)
        os.mkdir(path, 0o755)
    options = f"size={layout.LEDGER_SIZE},nr_inodes=2,mode=0555"
    if _is_there(_SELINUX):
        options += f",context={_LABEL}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"nvc-ledger", os.fsencode(path), b"tmpfs", ctypes.c_ulong(_FLAGS), options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mount: {os.strerror(number).lower()}", path)
    fd = os.open(f"{path}/{layout.LEDGER_NAME}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with closing(fd):
        os.fchmod(fd, 0o666)  # whoever the users of the containers are
        os.posix_fallocate(fd, 0, layout.LEDGER_SIZE)
        os.pwrite(fd, ledger.header(), 0)
    os.close(os.open(ready, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _is_there(path: str) -> bool:
    """Whether something is at `path`. Raises OSError if that cannot be told."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def unmount(path: str) -> None:
    """Unmount the file system of a ledger and remove its directory. Containers keep theirs. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    while libc.umount2(os.fsencode(path), _DETACH | _NOFOLLOW) == 0:
        pass
    for remove, gone in ((os.unlink, f"{path}/{layout.LEDGER_NAME}"), (os.rmdir, path)):
        try:
            remove(gone)
        except FileNotFoundError:
            pass  # the ledger is in the mount
