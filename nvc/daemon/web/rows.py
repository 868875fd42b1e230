"""What the live page shows, as JSON: of a GPU, a slice on it, a process. Pure: frozen values in, plain values out.

It decides nothing: states, entitlements and shares are those of `vgpu top`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvc.daemon.audit.accountant import Balance, User
from nvc.daemon.audit.nvml_client import DeviceSeen
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.ledger import Account
from nvc.model.slices.policy import policy_of
from nvc.model.slices.suspension import Suspension
from nvc.slices.policy.utilization import Received, state
from nvc.slices.show.rows import policy_text
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus, on_devices

UNKNOWN_NAME = "?"
Had = Mapping[tuple[str, int], tuple[float, int]]  # by UUID and process: its part of the time, and switches in all


def asked_text(device: SliceDeviceStatus) -> str:
    """What a slice asks for of a device's time: a cap, a weight, or neither."""
    if device.cores:
        return f"{device.cores}%"
    return f"weight {device.weight}" if policy_of(device.policy).weighs else "-"


def slice_row(tenant: SliceStatus, device: SliceDeviceStatus) -> dict[str, Any]:
    """What seldom changes of a slice on one device; amounts in bytes, parts of the device's time from 0 to 1."""
    return {
        "gpu": device.uuid,
        "key": tenant.entry.key,
        "name": tenant.name,
        "origin": tenant.origin,
        "asked": asked_text(device),
        "policy": policy_text(device),
        "problem": device.not_enforced or tenant.problem or None,
        "entitled": device.entitlement,
        "limit": None if device.limit == NO_LIMIT else device.limit,
        "reserved": device.reserved,
        "limitedBy": list(tenant.keepers(device)),
        "created": tenant.entry.created,
    }


def slice_now(
    tenant: SliceStatus, device: SliceDeviceStatus, had: Received | None, balance: Balance | None, peak: int,
    refused: int | None,
) -> list[Any]:  # fmt: skip
    """What often does: its state, what it received and waited, memory that it has and had at most, refusals.

    Parts of the time since the look before; None: not known.
    """
    share, waited = (round(had.share, 3), round(had.waited, 3)) if had else (None, None)
    used, most = (balance.on_device(tenant.suspension), peak) if balance is not None else (None, None)
    return [state(tenant, device, had), share, waited, used, most, refused]


def gpu_row(
    order: int, index: str, name: str, policy: str, time: str, seen: DeviceSeen | None,
    strangers: list[list[Any]], had: Had, uuid: str,
) -> dict[str, Any]:  # fmt: skip
    """One GPU at position `order`; None: not known. `strangers`: pid, name and bytes of processes in no slice."""
    parts = [had[uuid, pid][0] for pid, *_ in strangers if (uuid, pid) in had]
    memory, used, busy = (seen.memory, seen.used, seen.busy) if seen is not None else (-1, -1, -1)
    return {
        "order": order,
        "index": index,
        "name": name,
        "policy": policy,
        "time": time,
        "memory": memory if memory > 0 else None,
        "used": used if used >= 0 else None,
        "busy": busy if busy >= 0 else None,
        "strangers": strangers,
        "strangersHad": round(sum(parts), 3) if parts else None,
    }


def processes(
    key: str, uuids: tuple[str, ...], accounts: tuple[Account, ...], users: tuple[User, ...], had: Had,
    suspension: Suspension | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The processes of a slice: those with an account in its ledger, then those that only NVML shows."""
    own = [user for user in users if user.key == key]
    pids = {user.inside: user.pid for user in own}
    named = tuple(one.replace(host_pid=pids.get(one.pid, 0)) for one in accounts)
    accounts = on_devices(named, suspension)
    found = [(one.pid, one.name, dict(zip(uuids, one.used)), True) for one in accounts]
    counted = {one.pid for one in accounts}
    found += [
        (user.inside, UNKNOWN_NAME, {user.uuid: max(user.used, 0)}, False)
        for user in own
        if user.inside not in counted
    ]
    return [
        {
            "pid": pids.get(inside),
            "inside": inside,
            "name": name,
            "used": used,
            "had": {uuid: part for (uuid, pid), (part, _) in had.items() if pid == pids.get(inside)},
            "switches": sum(many for (_, pid), (_, many) in had.items() if pid == pids.get(inside)),
            "shim": shim,
        }
        for inside, name, used, shim in found
    ]


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What is in `new` and not, or not so, in `old`."""
    return {name: value for name, value in new.items() if old.get(name) != value}
