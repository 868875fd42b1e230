"""The slices of this host as they are now: what was asked for, who is in them, and what those say they hold."""

from __future__ import annotations

from nvc.errors import InputError
from nvc.value import Value
from nvc.vgpu import ledger, registry
from nvc.vgpu.layout import CORES_UNCAPPED, DENIED, NO_LIMIT, PAUSED, POLICY_NATIVE, WEIGHT
from nvc.vgpu.ledger import Budget
from nvc.vgpu.limits import finished, read_quota
from nvc.vgpu.living import processes_of, use_of
from nvc.vgpu.quota import QuotaError
from nvc.vgpu.registry import Entry, RegistryError
from nvc.vgpu.shares import policy_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.kernel import Kernel
    from nvc.vgpu.ledger import Account


class TenantDevice(Value):
    """One device of a slice; amounts in bytes."""

    uuid: str
    index: str
    name: str
    memory: int  # all there is; 0: not known
    limit: int  # NO_LIMIT: all of it
    used: int  # as the processes say
    cores: int = CORES_UNCAPPED  # percent of its time
    weight: int = WEIGHT
    policy: int = POLICY_NATIVE
    paused: bool = False
    denied: bool = False
    budget: Budget | None = None  # of its time, as the processes say; None: not known

    @property
    def hidden(self) -> bool:
        """Whether nothing of it may be used: it is there for who looks behind CUDA_VISIBLE_DEVICES."""
        return self.limit == 0


class Tenant(Value):
    """One slice."""

    entry: Entry
    short: str  # a name for the command line
    pids: tuple[int, ...]  # as /proc numbers them; none: the container is gone
    devices: tuple[TenantDevice, ...]
    accounts: tuple[Account, ...]
    problem: str = ""  # why `used` is not known

    @property
    def alive(self) -> bool:
        """Whether any process is in it."""
        return bool(self.pids)


def tenants(kernel: Kernel) -> tuple[tuple[Tenant, ...], tuple[str, ...]]:
    """Every slice, and warnings about entries that cannot be read."""
    base = registry.base_directory()
    entries, warnings = [], []
    for name in registry.entry_names(base):
        try:
            entries.append(registry.read_entry(f"{base}/{name}"))
        except RegistryError as error:
            warnings.append(str(error))
    living = processes_of(kernel, tuple(entries))
    firsts = [entry.key.partition("-")[0] for entry in entries]
    taken = [key.partition("-")[0] for key in living]
    found = []
    for entry, first in zip(entries, firsts):
        # The number of a namespace that is gone is given again: it then names the slice that lives.
        alone = firsts.count(first) == 1 or entry.key in living and taken.count(first) == 1
        short = first if alone else entry.key
        pids = living.get(entry.key, ())
        try:
            try:
                found.append(_tenant(kernel, entry, short, pids))
            except QuotaError:
                if finished(kernel, entry):
                    warnings.append(f"{entry.quota}: whoever changed it was killed; what it says now holds")
                found.append(_tenant(kernel, entry, short, pids))
        except (QuotaError, OSError) as error:
            warnings.append(f"{entry.directory}: {error}")
    return tuple(sorted(found, key=lambda tenant: tenant.entry.created)), tuple(warnings)


def _tenant(kernel: Kernel, entry: Entry, short: str, pids: tuple[int, ...]) -> Tenant:
    now = read_quota(entry)
    count = min(len(now), len(entry.devices))
    use = use_of(kernel, entry, pids, count)
    totals = ledger.totals(use.accounts, count)
    budgets = use.budgets if use.budgets and pids else (None,) * count
    devices = tuple(
        TenantDevice(
            device.uuid, device.index, device.name, device.memory, limit.memory_limit, used, limit.cores,
            limit.weight, limit.policy, bool(limit.flags & PAUSED), bool(limit.flags & DENIED), budget,
        )
        for device, limit, used, budget in zip(entry.devices, now, totals, budgets)
    )  # fmt: skip
    return Tenant(entry, short, pids, devices, use.accounts, use.problem if pids else "")


def find(everybody: tuple[Tenant, ...], name: str) -> Tenant:
    """The slice that `name` means: its name, the beginning of its key, or a process in it. Raises InputError."""
    exact = [tenant for tenant in everybody if name in (tenant.short, tenant.entry.key)]
    by_pid = [tenant for tenant in everybody if name.isdigit() and int(name[:20]) in tenant.pids]
    begins = [tenant for tenant in everybody if name and tenant.entry.key.startswith(name)]
    for found in (exact, by_pid, begins):
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError("find slice", name, f"{len(found)} slices are meant", "write more of its key")
    raise InputError(
        "find slice", name, "no such slice, and no process in one", "`nvc-cli vgpu ls` lists them"
    )


def gone(tenant: Tenant) -> tuple[str, ...]:
    """What is to be told to who changes a slice that nobody has any more."""
    return () if tenant.alive else (f"{tenant.short}: no process has this slice any more",)


def unreadable(everybody: tuple[Tenant, ...]) -> dict[str, Entry]:
    """The entries that `tenants` has left out, by key: there is nothing to be done with them but to remove them.

    Of one whose `about` cannot be read nothing but its key is known.
    """
    base = registry.base_directory()
    found = {}
    for key in {*registry.entry_names(base)} - {tenant.entry.key for tenant in everybody}:
        try:
            found[key] = registry.read_entry(f"{base}/{key}")
        except RegistryError:
            found[key] = Entry(key, f"{base}/{key}", 0, 0, "", "", 0, ())
    return found


def document(tenant: Tenant) -> dict[str, Any]:
    """One slice for programs; amounts in bytes, times in seconds since the epoch."""
    return {
        "key": tenant.entry.key,
        "name": tenant.short,
        "running": tenant.alive,
        "rootfs": tenant.entry.rootfs or None,
        "libraries": tenant.entry.libs_dir,
        "quota": tenant.entry.quota,
        "created": tenant.entry.created,
        "pids": list(tenant.pids),
        "problem": tenant.problem or None,
        "devices": [
            {
                "uuid": device.uuid,
                "index": device.index,
                "name": device.name,
                "memory": device.memory or None,
                "limit": None if device.limit == NO_LIMIT else device.limit,
                "cores": device.cores or None,
                "weight": device.weight,
                "policy": policy_name(device.policy),
                "paused": device.paused,
                "denied": device.denied,
                "time": _time(device),
                "used": None if tenant.problem or not tenant.alive else device.used,
            }
            for device in tenant.devices
        ],
        "processes": [
            {"pid": account.pid, "name": account.name, "used": list(account.used)}
            for account in tenant.accounts
        ],
    }


def _time(device: TenantDevice) -> dict[str, Any] | None:
    """What the slice has had of a device's time, in all; None: not known."""
    if device.budget is None:
        return None
    budget = device.budget
    return {"usedNs": budget.charged, "waitedNs": budget.waited, "launches": budget.launches}
