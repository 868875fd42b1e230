"""Admission of slices: which slices share a device, and whether its policy admits one more."""

from __future__ import annotations

from nvc.base.errors import InputError, counted
from nvc.base.value import Value
from nvc.kernel import Kernel
from nvc.model.slices.entry import Entry, RegistryError
from nvc.model.slices.isolation import EXCLUSIVE
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.policy import CAP, MPS_CLIENTS, policy_of
from nvc.model.slices.sizes import size_text
from nvc.model.slices.slice import Slice, SliceDevice
from nvc.model.slices.time_settings import NO_CAP
from nvc.slices.policy import policies
from nvc.slices.store.snapshot import Snapshot, snapshot


class Sharer(Value):
    """A slice on one device, as admission sees it."""

    key: str
    cores: int
    weight: int
    limit: int  # bytes; NO_LIMIT: all of it
    isolation: str = ""
    server: str = ""  # of Entry
    reserved: int = 0  # bytes of the device's memory


def sharers(
    known: Snapshot, uuid: str, step: str, but: str = "", quotas: bool = True
) -> tuple[Sharer, ...]:
    """The living slices on a device, except the one with the key `but`.

    Raises RegistryError, for this `step`, if a slice that may use the device cannot be read. But without `quotas`
    those need not be: the rest is in files that no tenant can open. One could have others refused by a lease.
    """
    known.check(step, uuid, but, leased=quotas)
    leased = tuple(
        Sharer(entry.key, 0, 0, 0, entry.isolation, entry.server, device.reserved)
        for entry in known.leased
        for device in entry.devices
        if device.uuid == uuid and entry.key != but
    )
    return leased + tuple(
        Sharer(
            entry.key, device.cores, device.weight, device.memory_limit, entry.isolation, entry.server,
            entry.devices[place].reserved if place < len(entry.devices) else 0,
        )  # fmt: skip
        for entry, limits in known.living
        for place, device in enumerate(limits)
        # Without memory it is there for who looks behind CUDA_VISIBLE_DEVICES.
        if device.uuid == uuid and device.memory_limit and entry.key != but
    )


def admit(kernel: Kernel, key: str, slice: Slice) -> None:
    """Refuse a slice for which one of its devices has no room. The caller holds the registry's lock.

    Raises RegistryError, PolicyError.
    """
    known: Snapshot | None = None
    for device in slice.devices:
        if device.hidden:
            continue
        own = policies.read(device.uuid)
        check_cap(device.cores, device.uuid, own.effective(device.policy))
        bounded = own.bounds or ":" in device.index or slice.server
        if not bounded and not device.reserved:
            continue
        if known is None:
            known = snapshot(kernel, locked=True)
        quotas = bool(own.total_weight or own.oversubscribe)
        others = sharers(known, device.uuid, "make a slice", key, quotas)
        if device.reserved:
            check_reservation(device, others, known)
        if not bounded:
            continue
        alone = slice.isolation in EXCLUSIVE
        if alone and others or any(one.isolation in EXCLUSIVE for one in others):
            cause = "it is reserved for one slice, and another has it"
            raise RegistryError("make a slice", device.uuid, cause, "start it again, or ask for another device")
        if slice.server:
            check_clients(device.uuid, others)
        most = own.max_instances
        if most and len(others) >= most:
            raise RegistryError(
                "make a slice", device.uuid, f"{counted(len(others), 'slice')} on it, of at most {most}",
                "`nvc-cli vgpu policy` shows that, and changes it with --max-instances",
            )  # fmt: skip
        check_weight("make a slice", device.uuid, device.weight, own.total_weight, others)
        # A slice that is there, and made again, keeps what it has.
        limits = (share for entry, shares in known.living if entry.key == key for share in shares)
        if device.limit > max((one.memory_limit for one in limits if one.uuid == device.uuid), default=0):
            check_memory("make a slice", device.uuid, device.limit, device.memory, own.oversubscribe, others)


def check_reservation(device: SliceDevice, others: tuple[Sharer, ...], known: Snapshot) -> None:
    """Refuse a reservation above the memory of a device that no slice has reserved. Raises RegistryError."""
    taken = {one.key: one.reserved for one in others if one.reserved}
    free = max(device.memory - sum(taken.values()), 0)
    if device.reserved <= free:
        return
    from nvc.discovery.containers.lookup import Lookup
    from nvc.slices.store.status import label_of

    names = Lookup()
    who = ", ".join(
        f"{label_of(entry, names)} {size_text(taken[entry.key])}"
        for entry in (*known.leased, *(entry for entry, _ in known.living))
        if entry.key in taken
    )
    raise RegistryError(
        "make a slice", device.uuid,
        f"{size_text(device.reserved)} cannot be reserved: {size_text(free)} of {size_text(device.memory)} is"
        f" free, the rest is reserved by {who}",
        "wait until one has ended (`nvc-cli vgpu ls`), or request less",
    )  # fmt: skip


def check_weight(step: str, uuid: str, weight: int, total: int, others: tuple[Sharer, ...]) -> None:
    """Refuse a weight above what is free of a device's maximum sum. Raises RegistryError."""
    free = max(total - sum(one.weight for one in others), 0)
    if total and weight > free:
        raise RegistryError(
            step, uuid, f"a weight of {weight}, and {free} of {total} is free",
            "`nvc-cli vgpu policy` shows that, and changes it with --total-weight",
        )  # fmt: skip


def check_memory(
    step: str, uuid: str, limit: int, memory: int, percent: int, others: tuple[Sharer, ...]
) -> None:
    """Refuse a limit above what is left of `percent` of a device's `memory`; 0: no bound. Raises RegistryError."""
    most = memory * percent // 100
    free = max(most - given(memory, others), 0)
    if percent and min(limit, memory or NO_LIMIT) > free:
        what = f"a limit of {size_text(limit)}"
        what = f"no limit, which counts as {size_text(memory)}" if limit == NO_LIMIT else what
        raise RegistryError(
            step, uuid,
            f"{what}, and {size_text(free)} of {size_text(most)} is free, which is {percent}% of its memory",
            "ask for less, end a slice (`nvc-cli vgpu ls`), or change --oversubscribe of `nvc-cli vgpu policy`",
        )  # fmt: skip


def given(memory: int, slices: tuple[Sharer, ...]) -> int:
    """The sum of the limits of `slices` of a device. One without a limit may take all of its `memory`."""
    return sum(min(one.limit, memory) for one in slices)


def check_clients(uuid: str, others: tuple[Sharer, ...]) -> None:
    """Refuse one more slice where `others` are as many as an MPS server takes clients. Raises RegistryError."""
    if sum(one.server == uuid for one in others) >= MPS_CLIENTS:
        cause = f"{MPS_CLIENTS} slices share its MPS server, the most that it takes"
        raise RegistryError("make a slice", uuid, cause, "wait until one has ended, or ask for another device")


def check_server(entry: Entry, uuid: str, policy: int) -> None:
    """Refuse a policy with one MPS server for a slice that was started without it. Raises InputError."""
    if policy_of(policy).server and entry.server != uuid:
        raise InputError(
            uuid, cause=f"slice {entry.key} was started without the MPS server of policy {policy_of(policy).name}",
            hint="stop it, set the policy, and start it again",
        )  # fmt: skip


def check_cap(cores: int, what: str, policy: int) -> None:
    """Refuse a slice without a cap where the device's policy needs one. Raises InputError."""
    row = policy_of(policy)
    if row.bound == CAP and not cores:
        raise InputError(what, cause=f"its policy is {row.name}, and the slice has no cap", hint=NO_CAP)
