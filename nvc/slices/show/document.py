"""Slices as JSON and YAML have them. Pure."""

from __future__ import annotations

from typing import Any

from nvc.discovery.containers import ContainerName
from nvc.model.request import TEXTS
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.policy import policy_of
from nvc.model.slices.suspension import Suspension
from nvc.model.slices.time_settings import time_document
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus


def document(tenant: SliceStatus) -> dict[str, Any]:
    """One slice for programs; amounts in bytes, times in seconds since the epoch."""
    return {
        "key": tenant.entry.key,
        "name": tenant.name,
        "state": tenant.state,
        "running": tenant.alive,
        "container": container_document(tenant.container),
        "program": tenant.entry.program or None,
        "rootfs": tenant.entry.rootfs or None,
        "libraries": tenant.entry.libs_dir,
        "quota": tenant.entry.quota,
        "created": tenant.entry.created,
        "pids": list(tenant.pids),
        "problem": tenant.problem or None,
        "suspension": _suspension(tenant.suspension),
        "hooks": {"suspend": tenant.entry.suspend_hook or None, "resume": tenant.entry.resume_hook or None},
        **{row.key: getattr(tenant.entry, name) or None for name, row in TEXTS.items() if row.kind != "hook"},
        "devices": [
            {
                "uuid": device.uuid,
                "index": device.index,
                "name": device.name,
                "memory": device.memory or None,
                "limit": None if device.limit == NO_LIMIT else device.limit,
                "reserved": device.reserved,
                "limitedBy": [name.lower() for name in tenant.keepers(device)],
                **time_document(device),
                "askedPolicy": policy_of(device.asked_policy).name,
                "notEnforced": device.not_enforced or None,
                "pacePercent": device.pace,
                "paused": device.paused,
                "denied": device.denied,
                "time": _time(device),
                "used": None if tenant.problem or not tenant.alive else device.used,
                "moved": device.moved,
                "refused": device.refused,
            }
            for device in tenant.devices
        ],
        "processes": [
            {
                "pid": account.host_pid or None,
                "pidInside": account.pid,
                "name": account.name,
                "used": list(account.used),
            }
            for account in tenant.accounts
        ],
    }


def _suspension(one: Suspension | None) -> dict[str, Any] | None:
    """What is known of a slice that does not run, for programs."""
    if one is None:
        return None
    return {
        "since": one.since,
        "saved": one.bytes,
        "pids": list(one.pids),
        "problem": one.problem or None,
        "why": one.why or None,
    }


def container_document(container: ContainerName) -> dict[str, str | None] | None:
    """A container as its engine knows it, for programs; None where nothing is known of it."""
    if not container.id:
        return None
    return {name: text or None for name, text in zip(container._fields, container)}


def _time(device: SliceDeviceStatus) -> dict[str, Any] | None:
    """The slice's total use of a device's time, for programs; None: unknown."""
    if device.budget is None:
        return None
    budget = device.budget
    return {"usedNs": budget.charged, "waitedNs": budget.waited, "launches": budget.launches}
