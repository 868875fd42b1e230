"""Compares the memory that NVML shows for slices with their ledgers, and corrects their quotas.

A slice's `truth` on a device is the sum of what NVML shows for its processes; `model` is what its ledger says.
Where the truth is more, the difference goes into the quota, so that the shim counts it too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from nvc.base.value import Value
from nvc.daemon.audit.ledgers import Ledgers
from nvc.daemon.audit.nvml_client import NOT_ASKED, DeviceSeen
from nvc.daemon.io.identity import slice_of
from nvc.daemon.schedule.slice_index import LOCK_TIME, SliceIndex
from nvc.kernel import Kernel
from nvc.kernel.processes import start_of
from nvc.model.slices import quota
from nvc.model.slices.entry import RegistryError
from nvc.model.slices.quota import QuotaDevice
from nvc.model.slices.suspension import Suspension
from nvc.slices.store import registry
from nvc.slices.store.process_info import ENDED, is_ending, pid_inside

GRACE = 5_000_000_000  # nanoseconds that a process may take to end
STEP = 2 << 20  # bytes: smaller differences are not worth a change of the quota


class User(Value):
    """A process that NVML shows on a device."""

    pid: int
    start: int  # clock ticks since boot
    inside: int  # its number in its own pid namespace
    key: str  # of its slice; "": it is in none
    uuid: str
    used: int  # bytes; -1: not told


class Balance(Value):
    """The memory of one slice on one device, in bytes."""

    key: str
    uuid: str
    index: str
    limit: int
    model: int  # as its ledger says
    truth: int  # as NVML says; -1: not told
    pids: tuple[int, ...]

    @property
    def used(self) -> int:
        """The larger of the two."""
        return max(self.truth, self.model)

    def on_device(self, suspension: Suspension | None) -> int:
        """What of it is on the device: of a suspended slice, what NVML shows."""
        return max(self.truth, 0) if suspension is not None and suspension.is_away else self.used


class ProcessUse(Value):
    """The percentage of the time with kernels of a process on a device."""

    pid: int
    start: int  # clock ticks since boot
    key: str  # of its slice; "": it is in none
    uuid: str  # in lower case
    percent: int


class Accountant:
    """Keeps the balance of each slice and device as of NVML's last answer."""

    def __init__(self, slices: SliceIndex, log: Callable[[str], None]) -> None:
        self.slices = slices
        self.kernel: Kernel = slices.kernel
        self.log = log
        self.devices: tuple[DeviceSeen, ...] = ()
        self.users: tuple[User, ...] = ()
        self.balances: tuple[Balance, ...] = ()
        #: The most that each slice was seen to have of each device, by key and UUID, since nvcd began.
        self.peaks: dict[tuple[str, str], int] = {}
        self.use: tuple[ProcessUse, ...] = ()  # since it was told the time before
        self.sampled: dict[str, int] = {}  # by UUID in lower case: 0, that was told, or NVML's error
        self._ending: dict[tuple[int, int], int] = {}  # since when, of processes: number and start
        self._now = 0
        self.changed = False  # a quota, since the slices were told
        self.ledgers = Ledgers(slices, lambda key: (user.pid for user in self.users if user.key == key))
        self._before: dict[str, tuple[int, ...]] = {}
        self._slices: dict[tuple[int, int], str] = {}  # of processes: number and start
        self._seen: dict[int, User] = {}  # processes that NVML lists, as they were when they lived
        self._inside: dict[tuple[int, int], int] = {}  # their numbers in their own pid namespaces
        self._searched: frozenset[str] = frozenset()  # the slices among which theirs was looked for

    def before(self) -> None:
        """Read the ledgers before NVML is asked: memory that is freed meanwhile must not look like a difference."""
        self.ledgers.begin()
        self._before = {key: self.ledgers.model(known) for key, known in self.slices.by_key.items() if known.alive}

    def told(self, devices: tuple[DeviceSeen, ...], now: int) -> None:
        """Take in an answer of NVML: assign processes to slices, make balances, and correct quotas."""
        self.devices, self._now = devices, now
        searched = frozenset(entry.key for entry in self.slices.living())
        if not searched <= self._searched:  # who was in no slice may be in one that could not be read till now
            self._slices = {name: key for name, key in self._slices.items() if key}
        self._searched = searched
        self.users = tuple(
            user
            for device in devices
            for pid, used in device.processes
            if (user := self._user(device.uuid, pid, used)) is not None
        )
        listed = {pid for device in devices for pid, _ in device.processes}
        self._seen = {pid: user for pid, user in self._seen.items() if pid in listed}
        self._ending = {place: since for place, since in self._ending.items() if place[0] in listed}
        self._take_use(devices)
        living = {(user.pid, user.start) for user in self.users} | {(one.pid, one.start) for one in self.use}
        self._slices = {name: key for name, key in self._slices.items() if name in living}
        self._inside = {name: number for name, number in self._inside.items() if name in living}
        self.ledgers.shown({user.key for user in self.users})
        after = {key: self.ledgers.model(self.slices.by_key[key]) for key in self._short()}
        # Asked last: whose account is not in the ledgers any more has begun to end by now.
        self.users = tuple(user for user in self.users if not self._ends(user))
        self.balances = self._balances(after)
        self.peaks = {
            (one.key, one.uuid): max(one.used, self.peaks.get((one.key, one.uuid), 0)) for one in self.balances
        }
        self._correct()

    def _short(self) -> set[str]:
        """The living slices whose ledger knows of less than NVML shows: it is read again."""
        users = Counter(user.key for user in self.users)
        found = {key for key, count in users.items() if count > len(self.ledgers.accounts.get(key, ()))}
        for (key, uuid), truth in self._truths().items():
            known = self.slices.by_key.get(key)
            for model, device in zip(self._before.get(key, ()), known.devices if known else ()):
                if device.uuid.lower() == uuid and not 0 <= truth <= model:
                    found.add(key)
        return {key for key in found if key in self.slices.by_key and self.slices.by_key[key].alive}

    def _truths(self) -> dict[tuple[str, str], int]:
        """What NVML shows for slices on each of their devices, by key and UUID in lower case; -1: not told."""
        truths: dict[tuple[str, str], int] = {}
        for user in self.users:
            place = user.key, user.uuid.lower()
            before = truths.get(place, 0)
            truths[place] = -1 if user.used < 0 or before < 0 else before + user.used
        return truths

    def _take_use(self, devices: tuple[DeviceSeen, ...]) -> None:
        """Keep the time that processes had, if NVML was asked for it."""
        sampled = {one.uuid.lower(): one.sampled for one in devices if one.sampled != NOT_ASKED}
        if sampled:
            self.sampled = sampled
            self.use = tuple(
                ProcessUse(user.pid, user.start, user.key, user.uuid.lower(), percent)
                for device in devices
                for pid, percent in device.use
                if percent and (user := self._user(device.uuid, pid, 0)) is not None
            )

    def _balances(self, models_now: dict[str, tuple[int, ...]]) -> tuple[Balance, ...]:
        """What living slices have on each of their devices, by their ledgers and by NVML."""
        truths = self._truths()
        pids: dict[tuple[str, str], list[int]] = {}
        for user in self.users:
            pids.setdefault((user.key, user.uuid.lower()), []).append(user.pid)
        balances = []
        for key, known in self.slices.by_key.items():
            if not known.alive:
                continue
            before, after = self._before.get(key, ()), models_now.get(key, ())
            for number, device in enumerate(known.devices):
                # The larger of two looks: what was taken or freed between them is in one of them.
                model = max([models[number] for models in (before, after) if number < len(models)] or [0])
                name = key, device.uuid.lower()
                index, own = known.entry.devices[number].index, tuple(pids.get(name, ()))
                truth = truths.get(name, 0)
                balances.append(Balance(key, device.uuid, index, device.memory_limit, model, truth, own))
        return tuple(balances)

    def _user(self, uuid: str, pid: int, used: int) -> User | None:
        try:
            start = start_of(f"/proc/{pid}")
            key = self._slices.get((pid, start))
            if key is None:
                entry = slice_of(self.kernel, pid, self.slices.living())
                key = self._slices[pid, start] = entry.key if entry is not None else ""
            inside = self._inside.get((pid, start))
            if inside is None:  # told by a file that a process with many groups makes long
                inside = self._inside[pid, start] = pid_inside(pid)
            user = self._seen[pid] = User(pid, start, inside, key, uuid, used)
            return user
        except OSError as error:
            if error.errno not in ENDED:
                self.slices.say(f"process {pid} on {uuid} is counted for nobody: {error}")
                return None
            # Its memory lives on in a child that has its descriptors, or the driver takes its time.
            before = self._seen.get(pid)
            return before.replace(uuid=uuid, used=used) if before is not None else None

    def _ends(self, user: User) -> bool:
        """Whether the process is ending, for GRACE at most.

        It gives up its slot in the ledger before the driver lets go of its memory. That difference is not written
        into the quota, nor held against the slice.
        """
        try:
            if not is_ending(user.pid):
                return False
        except OSError as error:
            if error.errno not in ENDED:
                return False  # what cannot be told counts
        return self._now - self._ending.setdefault((user.pid, user.start), self._now) < GRACE

    def outlived(self, pid: int, start: int) -> bool:
        """Whether the process is gone, or as good as gone, for so long that others must hold what it had."""
        return self._now - self._ending.get((pid, start), self._now) >= GRACE

    def refused(self, key: str) -> dict[str, int]:
        """Requests for memory that the slice's ledger says did not fit, by UUID; {} if unknown."""
        devices = self.slices.by_key[key].devices if key in self.slices.by_key else ()
        return {device.uuid: one.refused for device, one in zip(devices, self.ledgers.budgets(key))}

    @property
    def is_settled(self) -> bool:
        """Whether all ledgers were read, and no process is ending."""
        return not self._ending and not self.ledgers.unread

    def _correct(self) -> None:
        """Write the differences into the quotas, under the registry's lock."""
        wanted: dict[str, dict[str, int]] = {}
        for balance in self.balances:
            if balance.truth < 0:
                continue
            correction = max(0, balance.truth - balance.model)
            devices = self.slices.by_key[balance.key].devices
            now = next(one.correction for one in devices if one.uuid == balance.uuid)
            if abs(correction - now) > STEP or (now and not correction):
                wanted.setdefault(balance.key, {})[balance.uuid] = correction
        for key, corrections in wanted.items():
            self.change(key, lambda device, new: device.replace(correction=new), corrections)

    def change(
        self, key: str, change: Callable[[QuotaDevice, int], QuotaDevice], values: dict[str, int]
    ) -> bool:
        """Change a slice's quota in place, for the devices in `values`; whether that could be done."""
        known = self.slices.by_key[key]
        try:
            lock = registry.locked(self.kernel, LOCK_TIME)
        except RegistryError as error:
            self.log(str(error))
            return False
        try:
            names = [device.uuid for device in known.entry.devices]
            old = tuple(device.replace(uuid=name) for device, name in zip(quota.read(known.quota), names))
            new = tuple(
                change(device, values[device.uuid]) if device.uuid in values else device for device in old
            )
            if new != old:
                quota.write(known.quota, new)
                self.changed = True
            known.read()
        except (OSError, quota.QuotaError) as error:
            self.log(f"{self.slices.whose(key)}: {error}")
            return False
        finally:
            os.close(lock)
        return True
