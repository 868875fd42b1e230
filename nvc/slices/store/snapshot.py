"""A snapshot of all slices of this host: sound ones, and broken ones that cannot be read.

Admission, listing, checks and removal start here. nvc refuses what depends on a broken slice: `Snapshot.check`
comes before every decision that needs to know what the slices of a device have. Those are bounds of a device
policy, reservations, devices for one slice alone, shared MPS servers, and changes of policies and limits. A new
slice that needs none of these starts without the check: see registry.check_room.
"""

from __future__ import annotations

import time

from nvc.base.value import Value
from nvc.kernel import Kernel
from nvc.model.slices.entry import FILE_LEASE_TIME, REMOVE, Entry, RegistryError
from nvc.model.slices.quota import QuotaDevice, QuotaError, uuid_bytes
from nvc.slices.store import registry
from nvc.slices.store.limits import read_quota, sound_quota
from nvc.slices.store.liveness import Life, living, living_of


class SliceRecord(Value):
    """A slice that can be read."""

    entry: Entry
    limits: tuple[QuotaDevice, ...]  # of now
    life: Life | None  # None: its container is gone


class Broken(Value):
    """A slice of which something cannot be read."""

    entry: Entry  # only its key and directory, where the file `about` cannot be read
    uuids: frozenset[bytes]  # its devices; none: it may have any
    path: str  # of the file
    cause: str
    life: Life | None  # None: its container is gone
    torn: bool = False  # a change of its quota was never finished
    leased: bool = False  # only its quota cannot be read, on which a process holds a lease

    def error(self, step: str) -> RegistryError:
        """The error with which `step` is refused."""
        key = self.entry.key
        first = "stop its container, then" if self.life else "its container is gone:"
        cause = f"{self.cause}, so what slice {key} has is not known"
        return RegistryError(step, self.path, cause, f"{first} `nvc-cli vgpu rm {key}`")


class Snapshot(Value):
    """All slices at one moment."""

    slices: tuple[SliceRecord, ...]
    broken: tuple[Broken, ...]
    repaired: tuple[str, ...] = ()  # quotas of which a change was ended whose writer was killed

    @property
    def living(self) -> tuple[tuple[Entry, tuple[QuotaDevice, ...]], ...]:
        return tuple((one.entry, one.limits) for one in self.slices if one.life)

    @property
    def leased(self) -> tuple[Entry, ...]:
        """The slices that live of which only the quota cannot be read: a process of theirs holds a lease on it."""
        return tuple(one.entry for one in self.broken if one.leased and one.life)

    def broken_on(self, uuid: str, but: str = "", leased: bool = True) -> Broken | None:
        """A broken slice that may live and may have this device, except the one with the key `but`.

        Without `leased`, those of which only the quota cannot be read do not count.
        """
        for one in self.broken:
            if one.leased and not leased:
                continue
            if one.life and one.entry.key != but and (not one.uuids or uuid_bytes(uuid) in one.uuids):
                return one
        return None

    def check(self, step: str, uuid: str, but: str = "", leased: bool = True) -> None:
        """Raise RegistryError, for this `step`, if a broken slice may have this device; see `broken_on`."""
        one = self.broken_on(uuid, but, leased)
        if one is not None:
            raise one.error(step)


def snapshot(
    kernel: Kernel, locked: bool, processes: bool = False, repair: bool = True, base: str = ""
) -> Snapshot:
    """Read all slices below `base`, by default the registry.

    `locked`: the caller holds the registry's lock. With `processes`, each life has all processes of its slice,
    which takes examining every process of the host. With `repair`, the unfinished change of a quota is ended;
    without the lock this waits for it a little. Remains of interrupted removals are not slices. Tenants may hold
    leases on their quotas: all together are waited for as long as one is, since others wait for the lock.

    Raises OSError for the registry itself.
    """
    base = base or registry.base_directory()
    entries: list[Entry] = []
    wrong: dict[str, RegistryError] = {}
    for name, found_there in registry.entries(base):
        if isinstance(found_there, RegistryError):
            wrong[name] = found_there
            found_there = Entry(name, f"{base}/{name}", 0, 0, "", "", 0, ())
        entries.append(found_there)
    lives = (living if processes else living_of)(kernel, tuple(entries))
    found: list[SliceRecord] = []
    broken: list[Broken] = []
    repaired: list[str] = []
    end = time.monotonic() + FILE_LEASE_TIME
    for entry in entries:
        life, cause, torn, leased = lives.get(entry.key), wrong.get(entry.key), False, False
        limits: tuple[QuotaDevice, ...] = ()
        try:
            if repair:
                limits, ended = sound_quota(kernel, entry, locked, max(end - time.monotonic(), 0.0))
                repaired += [entry.quota] if ended else []
            else:
                limits = read_quota(entry, max(end - time.monotonic(), 0.0))
        except (OSError, QuotaError) as error:
            torn = isinstance(error, QuotaError) and error.torn
            leased = cause is None and isinstance(error, BlockingIOError)
            text = error.strerror if isinstance(error, OSError) else str(error.cause)
            cause = cause or RegistryError("read slice", entry.quota, text, REMOVE)
        if cause is None:
            found.append(SliceRecord(entry, limits, life))
            continue
        names = [device.uuid for device in entry.devices] + [device.uuid for device in limits]
        uuids = frozenset(map(uuid_bytes, names))
        broken.append(Broken(entry, uuids, cause.path, str(cause.cause), life, torn, leased))
    return Snapshot(tuple(found), tuple(broken), tuple(repaired))
