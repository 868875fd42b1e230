"""The slices of this host as users see them: names, limits, processes, and what these use.

A slice has the name that an engine gives its container, or that of the program of `vgpu run`. Of several with the
same name, the living one has it, and the others go by their ids.
"""

from __future__ import annotations

from collections import Counter

from nvc.base.errors import InputError, NvcError
from nvc.base.value import Value
from nvc.discovery.containers import ContainerName
from nvc.discovery.containers.lookup import Lookup, Trace
from nvc.kernel import Kernel
from nvc.kernel.clocks import host_monotonic
from nvc.model.request import Timing
from nvc.model.slices import ledger
from nvc.model.slices.entry import Entry
from nvc.model.slices.isolation import KERNEL, MPS
from nvc.model.slices.layout import NO_LIMIT, POLICY_NATIVE
from nvc.model.slices.ledger import Account, Budget
from nvc.model.slices.policy import policy_of
from nvc.model.slices.quota import QuotaDevice
from nvc.model.slices.suspension import Suspension, suspensions
from nvc.slices.client.nvcd import SHIM, silence
from nvc.slices.policy import policies
from nvc.slices.policy.entitlement import Demand, holds, in_force
from nvc.slices.store.limits import demand_of
from nvc.slices.store.liveness import Life, use_of
from nvc.slices.store.process_info import pid_inside
from nvc.slices.store.snapshot import Snapshot, snapshot

#: So many are listed where a name means several.
CANDIDATES = 8

class SliceDeviceStatus(Timing):
    """One device of a slice; amounts in bytes. Its policy is in force: the slice may have asked for another."""

    uuid: str
    index: str
    name: str
    memory: int  # all there is; 0: not known
    limit: int  # NO_LIMIT: all of it
    used: int  # that is on the device, as the processes say
    paused: bool = False
    denied: bool = False
    budget: Budget | None = None  # of its time, as the processes say; None: not known
    not_enforced: str = ""  # why the policy is not, where that was asked
    entitlement: float | None = None  # part of its time while all have work; None: what the driver gives
    reserved: int = 0  # that no other slice can reserve
    pace: int | None = None  # percent of the time for which it may have work beside others; None: not measured
    kept: bool = False  # nvcd keeps its time by the driver's scheduler; otherwise the shim does
    refused: int | None = None  # requests for memory that did not fit; None: not known
    moved: int = 0  # that is in the host's memory, of a suspended slice
    asked_policy: int = POLICY_NATIVE  # the slice's own

    @property
    def hidden(self) -> bool:
        """Whether the slice cannot use it: it is listed because CUDA_VISIBLE_DEVICES alone does not deny it."""
        return self.limit == 0

    @property
    def measured(self) -> bool:
        """Whether its time is: by the driver's log, beside others by nvcd, or of a slice with a cap by the shim."""
        capped = self.cores and policy_of(self.policy).timed
        return self.kept or self.pace is not None or bool(capped)

    @property
    def timed(self) -> bool:
        """Whether its time is measured: by the driver, or of a slice with a cap by the shim."""
        return self.kept or not self.not_enforced or bool(self.cores)


class SliceStatus(Value):
    """One slice."""

    entry: Entry
    short: str  # of its key, as much as tells it from others
    pids: tuple[int, ...]  # as /proc numbers them; none: the container is gone
    devices: tuple[SliceDeviceStatus, ...]
    accounts: tuple[Account, ...]
    problem: str = ""  # why `used` is not known
    name: str = ""  # for people and for the command line; no other slice has it
    container: ContainerName = ContainerName()  # as its engine knows it; all "" for a program
    doubt: str = ""  # if no process is seen: why the slice still counts as living
    suspension: Suspension | None = None  # None: it runs, or is gone

    @property
    def alive(self) -> bool:
        """Whether its container lives, as nvc.slices.store.liveness says."""
        return bool(self.pids or self.doubt)

    @property
    def state(self) -> str:
        """In one word: gone, running, or what nvcd has made of it."""
        if not self.alive:
            return "gone"
        return self.suspension.state if self.suspension is not None else "running"

    @property
    def origin(self) -> str:
        """What it is, for people: engine and id of a container, its root directory, or a program."""
        where = " ".join(part for part in (self.container.engine, self.container.short_id) if part)
        return where or self.entry.rootfs or "program"

    def keepers(self, device: SliceDeviceStatus) -> tuple[str, ...]:
        """What keeps the limit of memory on a device: shim, kernel, MPS, MIG. () where there is no limit."""
        limited, isolation = device.limit != NO_LIMIT, self.entry.isolation
        found = (
            ("shim", limited),
            ("kernel", limited and isolation == KERNEL),
            ("MPS", limited and (isolation == MPS or self.entry.server == device.uuid)),
            ("MIG", ":" in device.index),
        )
        return tuple(name for name, holds in found if holds)

    @property
    def aliases(self) -> tuple[str, ...]:
        """All names by which a user may call it, apart from prefixes of ids and process numbers."""
        own = (self.name, self.short, self.entry.key, self.entry.program, *self.container.aliases)
        return tuple(alias for alias in own if alias)


def statuses(
    kernel: Kernel, names: Lookup | None = None, locked: bool = False, repair: bool = True
) -> tuple[tuple[SliceStatus, ...], tuple[str, ...]]:
    """Every slice, those that live first, and warnings about those that cannot be read.

    Who lists them again and again passes one Lookup, which keeps what it has found. `locked` and `repair` are those
    of `snapshot`.
    """
    known = snapshot(kernel, locked, processes=True, repair=repair)
    found, problems = enforced(statuses_of(kernel, known, names), known)
    return found, (*warnings_of(known), *problems)


def warnings_of(known: Snapshot) -> tuple[str, ...]:
    """Warnings for lists of slices: broken ones, and quotas that were repaired."""
    ended = (f"{path}: its writer was killed; the current values apply" for path in known.repaired)
    return (*(str(one.error("list slices")) for one in known.broken), *ended)


def statuses_of(kernel: Kernel, known: Snapshot, names: Lookup | None = None) -> tuple[SliceStatus, ...]:
    """The slices of a snapshot, taken with their processes, that can be read."""
    firsts = [one.entry.key.partition("-")[0] for one in known.slices]
    taken = [one.entry.key.partition("-")[0] for one in known.slices if one.life]
    found = []
    for one, first in zip(known.slices, firsts):
        # The number of a namespace that is gone is given again: it then names the slice that lives.
        alone = firsts.count(first) == 1 or one.life and taken.count(first) == 1
        found.append(_slice_status(kernel, one.entry, first if alone else one.entry.key, one.life, one.limits))
    found.sort(key=lambda tenant: (not tenant.alive, tenant.entry.created))
    names = names or Lookup()
    away = suspensions()
    found = [
        with_suspension(tenant, away.get(tenant.entry.key)).replace(container=container_of(tenant.entry, names))
        for tenant in found
    ]
    return named(tuple(found))


def with_suspension(tenant: SliceStatus, one: Suspension | None) -> SliceStatus:
    """The slice, of which what is in the host's memory is not on its devices."""
    if one is None or not one.is_away:
        return tenant.replace(suspension=one)
    accounts = on_devices(tenant.accounts, one)
    totals = ledger.totals(accounts, len(tenant.devices))
    devices = tuple(
        device.replace(used=used, moved=one.moved(device.uuid)) for device, used in zip(tenant.devices, totals)
    )
    return tenant.replace(suspension=one, accounts=accounts, devices=devices)


def on_devices(accounts: tuple[Account, ...], one: Suspension | None) -> tuple[Account, ...]:
    """The accounts with what is on the devices, of a suspended slice those of later processes, and what stayed."""
    if one is None or not one.is_away:
        return accounts
    if one.by:  # it has one device
        moved = {pid: sum(each.moved for each in one.saved if each.pid == pid) for pid in one.pids}
        return tuple(
            account.replace(used=tuple(max(0, used - moved.get(account.host_pid, 0)) for used in account.used))
            for account in accounts
        )
    return tuple(
        account if account.host_pid and account.host_pid not in one.pids
        else account.replace(used=(0,) * len(account.used))
        for account in accounts
    )  # fmt: skip


def enforced(found: tuple[SliceStatus, ...], known: Snapshot) -> tuple[tuple[SliceStatus, ...], tuple[str, ...]]:
    """The slices with the policy in force and the entitlement on each device, and warnings.

    Where the device's policy or one of its slices cannot be read, each slice's own policy is shown, and no
    entitlement.
    """
    demands: dict[str, list[Demand]] = {}
    for tenant in found:
        for device in tenant.devices:
            if tenant.alive and not device.hidden:
                demands.setdefault(device.uuid, []).append(demand_of(tenant.entry, device))
    held: dict[tuple[str, str], tuple[int, float | None]] = {}
    warnings = []
    for uuid, sharing in demands.items():
        try:
            if known.broken_on(uuid) is not None:
                continue  # warnings_of() tells
            force = in_force(policies.read(uuid), tuple(sharing))
        except NvcError as error:
            warnings.append(str(error))
            continue
        held.update(((key, uuid), terms) for key, terms in holds(force).items())

    def of(tenant: SliceStatus, device: SliceDeviceStatus) -> SliceDeviceStatus:
        policy, entitlement = held.get((tenant.entry.key, device.uuid), (device.policy, None))
        return device.replace(policy=policy, entitlement=entitlement)

    made = (one.replace(devices=tuple(of(one, device) for device in one.devices)) for one in found)
    return tuple(made), tuple(warnings)


def named(found: tuple[SliceStatus, ...]) -> tuple[SliceStatus, ...]:
    """The slices, each with a name that no other has."""
    wanted = [tenant.entry.program or tenant.container.label for tenant in found]
    counts = Counter(wanted)
    alive = Counter(name for tenant, name in zip(found, wanted) if tenant.alive)
    made = []
    for tenant, name in zip(found, wanted):
        id = tenant.container.short_id
        alone = counts[name] == 1 or tenant.alive and alive[name] == 1
        if not alone:  # of one engine's container and another's, or of one after another
            name = id if tenant.alive and counts[id] == 0 else ""
        made.append(tenant.replace(name=name or tenant.short))
    return tuple(made)


def with_enforcement(found: tuple[SliceStatus, ...]) -> tuple[SliceStatus, ...]:
    """The slices, with what only nvcd knows: why a policy is not enforced. Asks it only if a policy needs it.

    Such a slice has no entitlement that holds, and without a cap nobody measures its time.
    """
    needing = any(_needs(tenant, device) for tenant in found for device in tenant.devices)
    cause = (silence() or SHIM) if needing else ""

    if not cause:
        return found
    return tuple(
        tenant.replace(devices=tuple(judged(tenant, device, cause) for device in tenant.devices))
        for tenant in found
    )


def judged(tenant: SliceStatus, device: SliceDeviceStatus, cause: str) -> SliceDeviceStatus:
    """The device as it is for the slice if policies that need nvcd are not enforced, because of `cause`."""
    if not _needs(tenant, device):
        return device
    changed = device.replace(not_enforced=cause, entitlement=None)
    return changed if changed.timed else changed.replace(budget=None)


def _needs(tenant: SliceStatus, device: SliceDeviceStatus) -> bool:
    needs = policy_of(device.policy).needs_nvcd and not device.kept
    return tenant.alive and not device.hidden and needs and not policy_of(device.policy).server


def container_of(entry: Entry, names: Lookup) -> ContainerName:
    """The names of a slice's container. Never raises."""
    if entry.claim and not entry.container:
        return ContainerName("kubernetes", name=entry.claim)
    if entry.program or not (entry.container or entry.cgroup):
        return ContainerName()
    return names.of(Trace(entry.container, entry.bundle, entry.cgroup))


def label_of(entry: Entry, names: Lookup) -> str:
    """What a slice is called, for messages: its program, its container's name, or the beginning of its key."""
    return entry.program or container_of(entry, names).label or entry.key.partition("-")[0]


def _slice_status(
    kernel: Kernel, entry: Entry, short: str, life: Life | None, now: tuple[QuotaDevice, ...]
) -> SliceStatus:
    pids, doubt = (life.pids, life.doubt) if life else ((), "")
    count = min(len(now), len(entry.devices))
    use = use_of(kernel, entry, pids, count)
    totals = ledger.totals(use.accounts, count)
    budgets = use.budgets if use.budgets and pids else (None,) * count
    at = host_monotonic()
    devices = tuple(
        SliceDeviceStatus(
            device.uuid, device.index, device.name, device.memory, limit.memory_limit, used,
            limit.paused, limit.denied, limit.kept(at) or budget,
            reserved=device.reserved, pace=limit.paced(at), kept=limit.kept(at) is not None,
            refused=budget.refused if budget else None, asked_policy=device.asked_policy, **limit.only(Timing),
        )
        for device, limit, used, budget in zip(entry.devices, now, totals, budgets)
    )  # fmt: skip
    problem = doubt or (use.problem if pids else "")
    return SliceStatus(entry, short, pids, devices, _with_host_pids(use.accounts, pids), problem, doubt=doubt)


def find(everybody: tuple[SliceStatus, ...], name: str) -> SliceStatus:
    """The slice that `name` means. Raises InputError, with the candidates if there are several.

    That is its name or one that an engine has for its container, a process in it, or the beginning of its key or of
    the container's id. Of several that have had the same name, the one that lives is meant.
    """
    named = [tenant for tenant in everybody if name in tenant.aliases]
    living = [tenant for tenant in named if tenant.alive]
    called = [tenant for tenant in everybody if name and tenant.name == name]
    by_pid = [tenant for tenant in everybody if name.isdigit() and int(name[:20]) in tenant.pids]
    begins = [
        tenant
        for tenant in everybody
        if name and (tenant.entry.key.startswith(name) or tenant.container.id.startswith(name))
    ]
    for found in (called, living, named, by_pid, begins):
        if len(found) == 1:
            return found[0]
        if found:
            cause = f"{len(found)} slices are meant: {_candidates(found)}"
            raise InputError("find slice", name, cause, "write one of these names, or more of the id")
    cause = "no such slice or container, nor a process in one"
    raise InputError("find slice", name, cause, "`nvc-cli vgpu ls --all` lists them")


def _candidates(found: list[SliceStatus]) -> str:
    shown = [f"{one.name} ({one.container.short_id or one.short})" for one in found[:CANDIDATES]]
    return ", ".join(shown) + (f" and {len(found) - CANDIDATES} more" if found[CANDIDATES:] else "")


def gone(tenant: SliceStatus) -> tuple[str, ...]:
    """A warning for changes of a slice whose container is gone."""
    return () if tenant.alive else (f"{tenant.name}: no process has this slice any more",)


def _with_host_pids(accounts: tuple[Account, ...], pids: tuple[int, ...]) -> tuple[Account, ...]:
    """The accounts, each with the host's number of its process, which is one of the slice's `pids`.

    Where two containers share a slice, two processes can have the same number inside: then neither is named.
    """
    wanted = {account.pid for account in accounts}
    found: dict[int, list[int]] = {}
    for pid in pids if wanted else ():
        try:
            inside = pid_inside(pid)
        except OSError:
            continue  # it has ended
        if inside in wanted:
            found.setdefault(inside, []).append(pid)
    named = {inside: here[0] for inside, here in found.items() if len(here) == 1}
    return tuple(account.replace(host_pid=named.get(account.pid, 0)) for account in accounts)
