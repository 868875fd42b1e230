"""The registry of slices: a directory for each, with its quota and what identifies it.

    /run/nvc/vgpu/<key>/quota    bound into the container; changed in place
    /run/nvc/vgpu/<key>/about    JSON
    /run/nvc/vgpu/<key>/ledger   of a slice that was made for a claim, whose containers share it: a file system
    /run/nvc/vgpu/<key>/ready    that is whole

The key is the container's mount namespace, then what names its rootfs (apply/target.py), which containers share.
Whether an entry's container lives the host tells by what it holds itself; nvc.slices.store.liveness says how.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import time
from errno import EBUSY, ENOTEMPTY

from nvc.apply.target import Target
from nvc.base.errors import SourceChanged
from nvc.base.files import closing
from nvc.base.rundir import needed_directory
from nvc.base.types import Any, Callable, Iterator
from nvc.kernel import O_PATH, Kernel
from nvc.model.request import SWAP, Timing, Told
from nvc.model.slices import layout, quota
from nvc.model.slices.entry import (
    MODE,
    Entry,
    EntryDevice,
    RegistryError,
    announce,
    create,
    entry_at,
    open_own,
    read_entry,
    text_of,
    write_about,
)
from nvc.model.slices.isolation import KERNEL
from nvc.model.slices.quota import QuotaDevice
from nvc.model.slices.slice import Slice, SliceDevice
from nvc.slices.policy import policies
from nvc.slices.store.process_info import cgroup_of, first_process, namespace_of

LOCK_TIMEOUT = 10.0  # seconds
#: With more entries than this, those of containers that are gone are removed when one is made.
MANY = 64
LEDGER, READY = "ledger", "ready"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def base_directory() -> str:
    """The registry's directory, made if need be. Raises InitializationError."""
    return needed_directory("make a slice", "vgpu")


def key_of(kernel: Kernel, target: Target) -> str:
    """The key of an open container."""
    fd = target.mount_namespace
    namespace = os.fstat(fd) if fd >= 0 else os.stat("/proc/self/ns/mnt")
    return f"{namespace.st_ino:x}-{target.key(kernel)}"


def enter(kernel: Kernel, target: Target, slice: Slice, libs_dir: str) -> Callable[[], None]:
    """Write the quota of a container, new or already running, before it is bound. Returns what takes that back.

    In a running one each device keeps its position, and one that is no longer asked for its limit. Raises
    RegistryError, also for a slice that is one too many for a device, InitializationError, PolicyError, and
    SourceChanged where the policy of a device is not the planned one any more.
    """
    base, key = base_directory(), key_of(kernel, target)
    path = f"{base}/{key}"
    lock = -1
    try:
        bound = is_bound(kernel, target.rootfs, libs_dir, path)  # a file system of the tenant may never answer
        lock = locked(kernel)
        _check(kernel, base, key, slice)
        devices = tuple(quota_device(device) for device in slice.devices)
        os.fchmod(lock, 0o711)
        names = entry_names(base)
        if len(names) > MANY:
            prune(kernel, base)
        if bound:
            return _change(path, devices, slice)
        remove(path)
        make(path, devices, entry_text(key, target, slice, libs_dir), texts_of(slice).get("suspend_by") == SWAP)
        return lambda: remove(path)
    except OSError as error:
        raise RegistryError.of("make a slice", error.filename or path, error) from None
    finally:
        if lock >= 0:
            os.close(lock)


def check(kernel: Kernel, target: Target, slice: Slice) -> None:
    """Raise what `enter` would raise for this slice, and change nothing."""
    base = base_directory()
    with closing(locked(kernel)):
        _check(kernel, base, key_of(kernel, target), slice)


def _check(kernel: Kernel, base: str, key: str, slice: Slice) -> None:
    """Refuse a slice for which its devices have no room, or whose plan is outdated. The caller holds the lock."""
    if slice.holds:
        _check_holds(kernel, base, key, slice.holds)
    check_room(kernel, key, slice)
    for planned, now in zip(slice.devices, policies.with_policies(slice.devices)):
        if now.policy != planned.policy:
            raise SourceChanged("make a slice", planned.uuid, "its policy was changed meanwhile", "run again")


def check_room(kernel: Kernel, key: str, slice: Slice) -> None:
    """Refuse a slice for which its devices have no room. The caller holds the lock.

    Another slice may have a MIG device for itself, or have reserved what this one reserves. Raises RegistryError,
    PolicyError.
    """
    if slice.server or any(
        ":" in one.index or one.reserved or policies.read(one.uuid).text() for one in slice.devices
    ):
        from nvc.slices.store.admission import admit

        admit(kernel, key, slice)


def held(holds: str) -> Entry | None:
    """The slice that was made for a claim with exactly these holds. Raises RegistryError."""
    for entry in sound_entries(base_directory()):
        if entry.claim and entry.holds == holds:
            return entry
    return None


def entries(base: str) -> Iterator[tuple[str, Entry | RegistryError]]:
    """The key of each slice, and its entry or why that cannot be read. Raises OSError for the registry itself.

    What a killed removal left is no slice.
    """
    for name in entry_names(base):
        found = entry_at(f"{base}/{name}")
        if found is not None:
            yield name, found


def sound_entries(base: str) -> Iterator[Entry]:
    """The entries of all slices. Raises RegistryError for one that cannot be read, OSError for the registry."""
    for _, entry in entries(base):
        if isinstance(entry, RegistryError):
            raise entry
        yield entry


def join(kernel: Kernel, target: Target, slice: Slice) -> None:
    """Have a container share the slice that was made for its claim. Raises RegistryError, InitializationError."""
    base, path = base_directory(), slice.quota.rpartition("/")[0]
    lock = locked(kernel)
    try:
        entry = read_entry(path)
        os.stat(f"{path}/{READY}")
        if os.stat(f"{path}/{LEDGER}/{layout.LEDGER_NAME}").st_size != layout.LEDGER_SIZE:
            raise RegistryError("share slice", f"{path}/{LEDGER}", "not a ledger any more", "delete the pod")
        _check_holds(kernel, base, entry.key, slice.holds)
        more = {"container": target.id, "bundle": target.bundle, "rootfs": target.rootfs_path}
        write_about(path, text_of(entry.replace(**more)))
    except OSError as error:
        raise RegistryError.of("share slice", error.filename or path, error, "delete the pod") from None
    finally:
        os.close(lock)


def _check_holds(kernel: Kernel, base: str, key: str, holds: str) -> None:
    """Refuse holds that another living slice has: two slices would have twice what the claim was given.

    The caller holds the lock. Raises RegistryError.
    """
    mine = set(holds.split())
    others = [one for one in sound_entries(base) if one.key != key and mine.intersection(one.holds.split())]
    if not others:
        return
    from nvc.slices.store.liveness import living

    for other in others:
        life = living(kernel, (other,)).get(other.key)
        if life and (life.pids or not other.claim):
            raise RegistryError(
                "share slice", other.key, "another container has a part of this one's claims",
                "give both the same requests, or each requests of its own",
            )  # fmt: skip


def quota_device(device: SliceDevice) -> QuotaDevice:
    """What the quota says of a device of a slice."""
    return QuotaDevice(
        device.uuid, device.limit, device.context_overhead, device.module_overhead, **device.only(Timing)
    )


def is_bound(kernel: Kernel, rootfs: int, libs_dir: str, path: str) -> bool:
    """Whether the root directory `rootfs` shows the quota of the entry at `path`. Raises OSError."""
    try:
        wanted = os.stat(f"{path}/quota")
        fd = kernel.open_in_root(rootfs, f"{libs_dir}/{layout.QUOTA_FILE}", O_PATH)
    except (FileNotFoundError, NotADirectoryError):
        return False
    with closing(fd):
        found = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)


def make(path: str, devices: tuple[QuotaDevice, ...], text: str, swaps: bool) -> None:
    """Make an entry atomically; the caller holds the lock. Raises OSError."""
    temporary = (
        f"{path.rpartition('/')[0]}/.new"  # one name, under the lock: what a killed run leaves is reused
    )
    remove(temporary)
    os.mkdir(temporary, MODE)
    os.chmod(temporary, MODE)  # whatever the umask
    with closing(create(f"{temporary}/quota", 0o644)) as fd:
        quota.write(fd, devices)
        if swaps:
            quota.set_flags(fd, False, True)
    write_about(temporary, text)
    os.rename(temporary, path)


def _change(path: str, devices: tuple[QuotaDevice, ...], slice: Slice) -> Callable[[], None]:
    """Change the entry of a running container. Returns what takes that back."""
    old_entry = read_entry(path)
    if old_entry.isolation == KERNEL != slice.isolation:
        raise RegistryError(
            "make a slice", old_entry.key, "the driver limits the memory of its cgroup, which would stay as it is",
            "ask for isolation by the kernel again (--isolation kernel)",
        )  # fmt: skip
    with closing(open_own(f"{path}/quota", os.O_RDWR)) as fd:
        quota.finish(fd)  # what a writer left that was killed: we hold the lock
        old = quota.read(fd)
        wanted = {quota.uuid_bytes(device.uuid): device for device in devices}
        merged = [wanted.pop(quota.uuid_bytes(device.uuid), device).marked_as(device) for device in old]
        merged += wanted.values()
        quota.write(fd, tuple(merged))
        known = {quota.uuid_bytes(device.uuid): device for device in old_entry.devices}
        known.update((quota.uuid_bytes(device.uuid), entry_device(device)) for device in slice.devices)
        entry = old_entry.replace(
            devices=tuple(known[quota.uuid_bytes(device.uuid)] for device in merged),
            isolation=slice.isolation if slice.isolation == KERNEL else old_entry.isolation,
            limited=slice.held.name if slice.held else old_entry.limited,
            server=slice.server or old_entry.server,
            **texts_of(slice),
        )
        write_about(path, text_of(entry))
        announce(path)

    def undo() -> None:
        with closing(open_own(f"{path}/quota", os.O_RDWR)) as again:
            quota.write(again, old)
            write_about(path, text_of(old_entry))
            announce(path)

    return undo


def entry_device(device: SliceDevice) -> EntryDevice:
    """The entry's record of a device."""
    return EntryDevice(
        device.uuid, device.index, device.memory, device.name, device.asked_policy, device.reserved
    )


def texts_of(slice: Slice) -> dict[str, Any]:
    """What an entry has of a slice: those of the first device with some."""
    named = {name: [getattr(device, name) for device in slice.devices] for name in Told._fields}
    return {name: next(filter(None, texts)) for name, texts in named.items() if any(texts)}


def entry_text(key: str, target: Target, slice: Slice, libs_dir: str) -> str:
    """The content of a new entry's file."""
    return text_of(Entry(
        key, "", *first_process(target), target.rootfs_path, libs_dir, int(time.time()),
        tuple(entry_device(device) for device in slice.devices), slice.isolation, target.id, target.bundle,
        "" if target.id or target.proc < 0 else cgroup_of(target.proc), slice.held.name if slice.held else "",
        mounts=namespace_of(target), holds=slice.holds, server=slice.server, **texts_of(slice),
    ))  # fmt: skip


def entry_names(base: str) -> list[str]:
    """The keys of all entries, sorted. Raises OSError."""
    return sorted(name for name in os.listdir(base) if _is_key(name))


def _is_key(name: str) -> bool:
    parts = name.split("-")
    return len(parts) == 4 and all(part and set(part) <= set("0123456789abcdef") for part in parts)


def prune(kernel: Kernel, base: str) -> list[str]:
    """Remove entries of containers that are gone, and the remains of interrupted removals. Returns their keys.

    An entry whose file `about` cannot be read stays: a container may have its quota bound. The caller holds the
    lock.
    """
    from nvc.slices.store.snapshot import snapshot

    known = snapshot(kernel, locked=True, base=base)
    kept = {one.entry.key for one in known.slices if one.life}
    kept |= {one.entry.key for one in known.broken if one.life or not one.entry.devices}
    gone = [name for name in entry_names(base) if name not in kept]
    for key in gone:
        remove(f"{base}/{key}")
    return gone


def remove(path: str) -> None:
    """Remove an entry's files, `about` last, so that an interrupted removal can be repeated.

    A container that has the quota bound keeps the file with its current limits.
    """
    try:
        os.rmdir(f"{path}/{LEDGER}")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno not in (EBUSY, ENOTEMPTY):
            raise
        from nvc.slices.store.claims import unmount

        unmount(f"{path}/{LEDGER}")
    for name in (READY, "quota", ".about", "about"):
        try:
            os.unlink(f"{path}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            pass
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass


def locked(kernel: Kernel, timeout: float = LOCK_TIMEOUT) -> int:
    """A descriptor that holds the lock on all entries; closing it releases the lock.

    Raises RegistryError where another process keeps the lock for `timeout` seconds, InitializationError, OSError.
    """
    base = base_directory()
    fd = os.open(base, _DIRECTORY)
    try:
        kernel.lock(fd, timeout)
    except OSError as error:
        os.close(fd)
        raise RegistryError.of("lock slices", base, error, "another nvc is at work") from None
    return fd
