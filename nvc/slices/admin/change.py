"""Changes limits of slices, and pauses them, while their containers run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from nvc.base.errors import InputError
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.kernel import Kernel
from nvc.model.facts import HostFacts
from nvc.model.request import TEXTS, Size, SliceRequest, TimeSetting, Told, fields_by
from nvc.model.slices.entry import REMOVE, EntryDevice, RegistryError, open_own, read_entry
from nvc.model.slices.isolation import KERNEL
from nvc.model.slices.layout import NO_LIMIT, PAUSED
from nvc.model.slices.policy import POLICIES, policy_of
from nvc.model.slices.quota import QuotaDevice, QuotaError
from nvc.model.slices.sizes import size_text
from nvc.model.slices.slice import HeldCgroup, SliceDevice, amount, with_time, wrong_count
from nvc.model.slices.time_settings import check_together, default_policy
from nvc.slices.policy import policies
from nvc.slices.store import registry
from nvc.slices.store.admission import Sharer, check_cap, check_memory, check_server, check_weight, sharers
from nvc.slices.store.effects import without_effect
from nvc.slices.store.limits import edit, sound_quota
from nvc.slices.store.snapshot import snapshot
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

T = TypeVar("T", Size, TimeSetting)

DRIVER_PATIENCE = 10.0  # seconds
FILE_LEASE_PATIENCE = 5.0  # seconds for a process of the slice that holds a lease on the quota (fcntl(2))


Change = Callable[[int, "DeviceLimits"], "DeviceLimits"]


class DeviceLimits(Value):
    """The limits of one device of a slice, and what the registry knows of it."""

    share: QuotaDevice
    known: EntryDevice


def set_limits(
    kernel: Kernel,
    tenant: SliceStatus,
    wanted: SliceRequest,
    devices: tuple[str, ...],
    unlimited: bool = False,
    facts: HostFacts | None = None,
) -> tuple[str, ...]:
    """Give the devices of a slice other limits: all that it may use, or those named by index or UUID.

    `wanted` has one size and one cap, or one for each device; `unlimited` lifts the limit of memory. Returns
    warnings: limits below what is in use, policies that are not in force or not enforced. `facts` are needed for
    other sizes of a slice with isolation by the kernel, whose cgroups the driver limits: all of them, or the slice
    stays as it was. Raises InputError, RegistryError, PolicyError, and what `kernel_limits.with_limits` raises.
    """
    if tenant.entry.claim:
        raise InputError(
            "change limits", tenant.name, f"its limits are those of the claim {tenant.entry.claim}",
            "the scheduler counts them: make another claim, or `pause` the slice",
        )  # fmt: skip
    chosen = _chosen(tenant, devices)
    for given, what in ((wanted.memory, "sizes"), (wanted.cores, "caps")):
        if len(given) not in (0, 1, len(chosen)):
            raise wrong_count(given, what, len(chosen))
    told: list[str] = []

    def change(place: int, old: DeviceLimits) -> DeviceLimits:
        number = chosen.index(place)
        size: Size | None = _nth(wanted.memory, number)
        memory = old.share.memory_limit
        if size is not None:
            memory = amount(size, _plain(tenant.devices[place]))
        share = old.share.replace(memory_limit=NO_LIMIT if unlimited else memory)
        if share.memory_limit > old.share.memory_limit and (most := policies.read(share.uuid).oversubscribe):
            others = _others(kernel, tenant, share.uuid)
            check_memory("change limits", share.uuid, share.memory_limit, old.known.memory, most, others)
        before = max(old.known.lowered, old.share.memory_limit)
        lowered = before if share.memory_limit < before else 0
        was, reserved = old.known.reserved, min(old.known.reserved, share.memory_limit)
        if reserved < was:
            told.append(f"{share.uuid}: reserves {size_text(reserved)} now, {size_text(was)} before")
        limited = DeviceLimits(share, old.known.replace(reserved=reserved, lowered=lowered))
        return _with_time(kernel, tenant, limited, wanted, _nth(wanted.cores, number), told)

    sizes = dict.fromkeys(chosen, NO_LIMIT) if unlimited else {
        place: amount(size, _plain(tenant.devices[place]))
        for number, place in enumerate(chosen) if (size := _nth(wanted.memory, number)) is not None
    }  # fmt: skip
    texts = {name: text for name, text in wanted.only(Told).items() if text}
    held = _held(tenant, sizes, facts) if sizes and tenant.entry.isolation == KERNEL else ()
    if held:
        from nvc.slices.make.kernel_limits import with_limits

        new = with_limits(held, DRIVER_PATIENCE, lambda: _edited(kernel, tenant, chosen, change, **texts))
    else:
        new = _edited(kernel, tenant, chosen, change, **texts)
    before = {tenant.devices[place].uuid: tenant.devices[place].policy for place in new}
    timed = _is_timed(wanted) or wanted.idle_suspend
    return (
        *told,
        *(_shortage(tenant, new) if wanted.memory else ()),
        *(without_effect(kernel, tenant.entry.key, wanted, before) if timed else ()),
    )


def _held(tenant: SliceStatus, sizes: dict[int, int], facts: HostFacts | None) -> tuple[HeldCgroup, ...]:
    """The cgroups of a slice, for the driver to limit to these sizes, by place."""
    from nvc.slices.make.kernel_limits import cgroup_with_id, held_processes

    if facts is None or not tenant.pids:
        cause = "no process runs in it, so its limit in the driver cannot change"
        raise InputError("change limits", tenant.name, cause, "try again while its program runs")
    limits = {tenant.devices[place].uuid: size for place, size in sizes.items()}
    # The driver reserves memory for programs of `vgpu run` alone.
    reserved = {} if tenant.entry.rootfs else {
        tenant.devices[place].uuid: min(size, tenant.devices[place].reserved) for place, size in sizes.items()
    }  # fmt: skip
    limited = tenant.entry.limited
    if not limited:  # CDI's hooks do not know it
        try:
            limited = cgroup_with_id(tenant.pids[0], tenant.entry.container)
        except OSError as error:
            raise RegistryError.of("change limits", tenant.name, error, "start it again if it has ended") from None
    return held_processes(facts, tenant.pids, limited, limits, reserved)


def pause(kernel: Kernel, tenant: SliceStatus, devices: tuple[str, ...], paused: bool) -> None:
    """Pause or resume all launches of a slice on its devices. Raises InputError, RegistryError."""

    def change(_: int, old: DeviceLimits) -> DeviceLimits:
        flags = old.share.flags | PAUSED if paused else old.share.flags & ~PAUSED
        return old.replace(share=old.share.replace(flags=flags))

    _edited(kernel, tenant, _chosen(tenant, devices), change)


def _edited(
    kernel: Kernel, tenant: SliceStatus, chosen: list[int], change: Change, **texts: str
) -> dict[int, QuotaDevice]:
    """Change the chosen devices, and what `texts` has of the entry, all or none."""
    # While this is open nobody gets a lease on the file, and the lock is not held while one is waited for.
    try:
        kept = open_own(tenant.entry.quota, os.O_RDWR, FILE_LEASE_PATIENCE)
    except OSError as error:
        raise RegistryError.of("change limits", tenant.entry.quota, error) from None
    with closing(kept), closing(registry.locked(kernel)):
        return _edited_locked(kernel, tenant, chosen, change, **texts)


def _edited_locked(
    kernel: Kernel, tenant: SliceStatus, chosen: list[int], change: Change, **texts: str
) -> dict[int, QuotaDevice]:
    try:
        entry = read_entry(tenant.entry.directory)
        limits, _ = sound_quota(kernel, entry, locked=True)
        now = [DeviceLimits(share, device) for share, device in zip(limits, entry.devices)]
        for place in chosen:
            now[place] = change(place, now[place])
        if len(now) != len(entry.devices):
            raise IndexError("its quota has fewer devices than the registry")
        edit(entry, tuple(one.share for one in now), tuple(one.known for one in now), **texts)
    except (OSError, QuotaError, IndexError) as error:
        raise RegistryError("change limits", tenant.entry.quota, error, REMOVE) from None
    return {place: now[place].share for place in chosen}


def _with_time(
    kernel: Kernel, tenant: SliceStatus, old: DeviceLimits, wanted: SliceRequest, cap: TimeSetting | None,
    told: list[str],
) -> DeviceLimits:
    """The limits of a device with the wanted cap, weight and policy. Appends warnings to `told`."""
    if not _is_timed(wanted):
        return old
    share = old.share
    cores = cap.value if cap is not None else share.cores
    device_policy = policies.read(share.uuid)
    if wanted.policy is not None:
        asked = wanted.policy.value
    elif old.known.asked_policy == default_policy(share.cores, share.weight != 1):  # nobody has named one
        asked = default_policy(cores, wanted.weight is not None or share.weight != 1)
    else:
        asked = old.known.asked_policy
    named = wanted.policy or cap or TimeSetting("--policy", POLICIES[asked], asked)
    check_together(cores, asked, named.name, named.text, share.uuid)
    changed = with_time(share, wanted, cores, asked, share.uuid)
    if changed.weight > share.weight:  # less is never too much, also where all together have too much
        others = _others(kernel, tenant, share.uuid)
        check_weight("change limits", share.uuid, changed.weight, device_policy.total_weight, others)
    policy = device_policy.effective(asked)
    check_cap(cores, share.uuid, policy)
    check_server(tenant.entry, share.uuid, policy)
    if policy_of(policy).server and cores != share.cores:
        told.append(f"{share.uuid}: programs that run keep their part of the multiprocessors until they end")
    return DeviceLimits(changed.replace(policy=policy), old.known.replace(asked_policy=asked))


def _others(kernel: Kernel, tenant: SliceStatus, uuid: str) -> tuple[Sharer, ...]:
    """The other slices of a device. The caller holds the registry's lock. Raises RegistryError."""
    return sharers(snapshot(kernel, locked=True), uuid, "change limits", tenant.entry.key)


def _is_timed(wanted: SliceRequest) -> bool:
    rows = (row for row in fields_by("set") if row.kind != "size" and row.name not in TEXTS)
    return any(getattr(wanted, row.name) for row in rows)


def _shortage(tenant: SliceStatus, new: dict[int, QuotaDevice]) -> tuple[str, ...]:
    """Warnings for devices of which more memory is in use than the new limits allow."""
    if tenant.problem:
        return (f"{tenant.name}: what is in use is not known: {tenant.problem}",)
    return tuple(
        f"{device.uuid}: {size_text(device.used + device.moved)} are in use, more than the new limit of "
        f"{size_text(share.memory_limit)}: nothing is taken from it and its work goes on"
        f"{' once it is resumed' if device.moved else ''}, but every new allocation fails until less than the limit"
        " is in use"
        for device, share in ((tenant.devices[place], share) for place, share in new.items())
        if device.used + device.moved > share.memory_limit
    )


def _nth(given: tuple[T, ...], number: int) -> T | None:
    return given[number if len(given) > 1 else 0] if given else None


def _plain(device: SliceDeviceStatus) -> SliceDevice:
    return SliceDevice(device.uuid, device.index, device.name, device.memory, NO_LIMIT)


def _chosen(tenant: SliceStatus, devices: tuple[str, ...]) -> list[int]:
    """The places of the named devices, or of all that the slice may use without a name. Raises InputError."""
    if not devices:
        return [place for place, device in enumerate(tenant.devices) if device.limit]
    chosen = []
    for name in devices:
        found = [at for at, one in enumerate(tenant.devices) if name.lower() in (one.index, one.uuid.lower())]
        if not found:
            raise InputError(
                "--device", name, "not a device of this slice", f"`nvc-cli vgpu show {tenant.name}` lists them"
            )
        if any(tenant.devices[place].hidden for place in found):  # nobody has let the slice in there
            raise InputError(
                "--device", name, "hidden from this slice", "start one that asks for this device"
            )
        chosen += found
    return list(dict.fromkeys(chosen))
