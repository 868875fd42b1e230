"""The slices of the host as nvcd needs them: read from the registry, from quotas and from device
policies. Only what has changed is read again. Of what cannot be read, the last sound values hold: a broken slice of
`store/snapshot.py` is refused, but counts here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from nvc.base.errors import NvcError
from nvc.daemon.io.seldom import Seldom
from nvc.daemon.schedule.names import Names
from nvc.kernel import Kernel
from nvc.kernel.clocks import host_monotonic
from nvc.model.request import SWAP
from nvc.model.slices import layout, quota
from nvc.model.slices.entry import Entry, RegistryError, entry_at, is_remnant, open_own
from nvc.model.slices.quota import QuotaDevice, QuotaError
from nvc.slices.policy import policies
from nvc.slices.policy.entitlement import InForce, in_force
from nvc.slices.policy.policies import DevicePolicy
from nvc.slices.store import limits, registry
from nvc.slices.store.liveness import living_of

LOCK_TIME = 0.05  # seconds: nvcd must not wait for a command; the next look tries again
NO_UUID = bytes(16)
AGAIN = 60_000_000_000  # nanoseconds between two looks at whether slices have processes again that had none


class IndexedSlice:
    """One slice."""

    __slots__ = ("entry", "stamp", "sequence", "devices", "uuids", "alive", "quota")

    def __init__(self, entry: Entry, stamp: int) -> None:
        self.entry = entry
        self.stamp = stamp  # of its directory: another one when `about` was replaced
        # Once and for both: a tenant with CAP_SYS_ADMIN can hold up whoever opens it later (fanotify(7)).
        try:
            self.quota = open_own(entry.quota, os.O_RDWR, 0)  # nobody waits
        except OSError as error:
            raise RegistryError.of("read slice", entry.quota, error) from None
        self.sequence: bytes | None = None  # of the quota when it was last read; None: not yet
        self.devices: tuple[QuotaDevice, ...] = ()  # named as the registry has them
        self.uuids: tuple[bytes, ...] = ()
        self.alive = True

    def read(self) -> bool:
        """Whether the quota says something new. Raises QuotaError, OSError."""
        sequence = os.pread(self.quota, layout.SEQUENCE.size, layout.SEQUENCE_OFFSET)
        if sequence == self.sequence:
            return False
        found = limits.named(quota.read(self.quota), self.entry)[: len(self.entry.devices)]
        self.sequence = sequence
        self.devices = found
        self.uuids = tuple(map(raw_uuid, (device.uuid for device in self.devices)))
        return True

    def set_time(self, uuid: str, at: int, had: int, waited: int) -> None:
        """Write what the slice had of a device until `at` into its quota; see quota.set_kept.

        `at`: nanoseconds of our CLOCK_MONOTONIC; 0: nvcd does not keep the time.
        """
        at = host_monotonic(at) if at else 0
        for number, device in enumerate(self.devices):
            if device.uuid.lower() == uuid.lower():
                quota.set_kept(self.quota, number, at, had, waited)

    def set_room(self, number: int, at: int, answered: int) -> None:
        """Write that nvcd makes room on a device into its quota; see quota.set_room. Raises OSError."""
        quota.set_room(self.quota, number, host_monotonic(at), answered)

    @property
    def swaps(self) -> bool:
        """Whether its programs move their memory."""
        return self.entry.suspend_by == SWAP

    def set_suspended(self, suspended: bool) -> None:
        """Write that into its quota; see quota.set_flags. Raises OSError."""
        quota.set_flags(self.quota, suspended, self.swaps)

    def close(self) -> None:
        """Forget the file."""
        os.close(self.quota)


class SliceIndex:
    """All slices; `refresh` brings it up to date."""

    def __init__(self, kernel: Kernel, log: Callable[[str], None]) -> None:
        self.kernel = kernel
        self.log = log
        self.base = registry.base_directory()
        self.by_key: dict[str, IndexedSlice] = {}
        #: Why slices cannot be read. One that could be before keeps what it had; another one is left out.
        self.broken: dict[str, str] = {}
        self.device_policy: dict[str, DevicePolicy] = {}  # by UUID
        self.force: dict[bytes, InForce] = {}  # by the bytes of the UUID
        self.names: dict[bytes, str] = {}  # UUIDs by their bytes
        self.seldom = Seldom(log)
        self.containers = Names(self._entry_of)
        self._again = 0

    def _entry_of(self, key: str) -> Entry | None:
        known = self.by_key.get(key)
        return known.entry if known is not None else None

    def whose(self, key: str) -> str:
        """A slice in the log: its key, and what people call it where somebody does."""
        label = self.containers.label(key, time.monotonic_ns())
        return f"slice {key} ({label})" if label else f"slice {key}"

    def living(self) -> list[Entry]:
        """The registry's entries of slices that have processes."""
        return [known.entry for known in self.by_key.values() if known.alive]

    def refresh(self, now: int, census: bool = True) -> None:
        """Read what has changed. With `census`, slices whose processes have ended no longer count."""
        try:
            names = set(registry.entry_names(self.base))
        except FileNotFoundError:
            names = set()  # all were removed: `Places` says so
        for key in [key for key in self.by_key if key not in names]:
            self._drop(key)
        self.broken = {key: problem for key, problem in self.broken.items() if key in names}
        for key in sorted(names):
            self._look(key)
        if census:
            again = now >= self._again
            if again:
                self._again = now + AGAIN
            doubted = [one for one in self.by_key.values() if one.alive or again]
            living = living_of(self.kernel, tuple(one.entry for one in doubted))
            for known in doubted:
                known.alive = known.entry.key in living
        self.apply()

    def _look(self, key: str) -> None:
        path = f"{self.base}/{key}"
        try:
            stamp = os.stat(path).st_mtime_ns
            known = self.by_key.get(key)
            if known is not None and known.stamp == stamp:
                self._read(known)
            else:
                found = entry_at(path)
                if isinstance(found, RegistryError):
                    raise found
                if found is not None:
                    self._replace(known, IndexedSlice(found, stamp))
                else:
                    self._drop(key)
        except (OSError, NvcError) as error:
            if is_remnant(path):  # it has ended since the directory was listed
                self._drop(key)
            elif self.broken.get(key) != str(error):
                self.broken[key] = str(error)
                self.log(f"{self.whose(key)}: {error}")
            return
        self.broken.pop(key, None)

    def _replace(self, known: IndexedSlice | None, new: IndexedSlice) -> None:
        """Take in a slice that can be read. Raises QuotaError, OSError."""
        try:
            self._read(new)
        except BaseException:
            new.close()
            raise
        quota.set_swaps(new.quota, new.swaps)
        if known is not None:
            known.close()
        self.by_key[new.entry.key] = new

    def _read(self, known: IndexedSlice) -> None:
        """Read a quota if it has changed. Raises QuotaError, OSError."""
        try:
            known.read()
        except QuotaError:
            if limits.finish(self.kernel, known.quota, LOCK_TIME):
                whose = self.whose(known.entry.key)
                self.log(f"{whose}: a writer of its quota was killed; the current values apply")
            known.read()

    def say(self, problem: str) -> None:
        """Log a problem that a tenant can cause; while it goes on, once a minute."""
        self.seldom.say(problem, problem, time.monotonic_ns())

    def _drop(self, key: str) -> None:
        """Forget a slice that has ended, if it was known."""
        known = self.by_key.pop(key, None)
        if known is not None:
            known.close()
            known.alive = False

    def apply(self) -> None:
        """Find who shares each device, and how."""
        sharers: dict[bytes, list[tuple[IndexedSlice, QuotaDevice]]] = {}
        for known in self.by_key.values():
            for raw, device in zip(known.uuids, known.devices):
                if known.alive and device.memory_limit and raw != NO_UUID:
                    sharers.setdefault(raw, []).append((known, device))
        for raw, found in sharers.items():
            uuid = self.names[raw] = found[0][1].uuid
            try:
                self.device_policy[uuid] = policies.read(uuid)
            except NvcError as error:  # what was there before holds
                self.say(str(error))
            demands = tuple(limits.demand_of(known.entry, device) for known, device in found)
            self.force[raw] = in_force(self.device_policy.get(uuid, DevicePolicy()), demands)
        for raw in [raw for raw in self.force if raw not in sharers]:
            del self.force[raw]


def raw_uuid(uuid: str) -> bytes:
    """The bytes of a UUID; of one that has none of its own, zeros."""
    try:
        return quota.uuid_bytes(uuid)
    except QuotaError:
        return NO_UUID
