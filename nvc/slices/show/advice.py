"""`nvc-cli vgpu advise`: what slices do now as situations, and advice as text or for programs. Pure."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from nvc.base.columns import clean, fitted
from nvc.model.slices.policy import FIRST, policy_of
from nvc.model.slices.time_settings import enforced_text
from nvc.slices.client.nvcd import SHIM
from nvc.slices.policy.advice import Advice, Load, Situation
from nvc.slices.policy.utilization import Received, percent
from nvc.slices.show.bars import short_size
from nvc.slices.show.view import Picture
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

INDENT = 2
SPARE = ("PROCESSES", "CORES", "WEIGHT", "USED", "STEP")
SOME, EARLY = 20, 0.9  # switches that say something, and the part of a timeslice after which it ends by itself


def situations(picture: Picture, state: dict[str, Any], before: dict[str, Any]) -> tuple[Situation, ...]:
    """Each device that slices with processes share, by index.

    `state` is nvcd's, `before` that of the picture before; {} if it does not answer.
    """
    known, old = ({str(one.get("uuid")).lower(): one for one in _objects(at, "devices")} for at in (state, before))
    shared: dict[str, list[tuple[SliceStatus, SliceDeviceStatus]]] = {}
    for tenant in picture.everybody:
        for device in tenant.devices:
            if tenant.alive and not device.hidden:
                shared.setdefault(device.uuid, []).append((tenant, device))
    found = []
    for uuid, pairs in shared.items():
        of_nvcd, of_old = known.get(uuid.lower(), {}), old.get(uuid.lower(), {})
        device = pairs[0][1]
        found.append(Situation(
            uuid=uuid,
            index=device.index,
            model=device.name,
            policy=device.policy,
            loads=tuple(
                _load(picture, tenant, one, _step(tenant, of_nvcd, of_old)) for tenant, one in pairs
            ),
            busy=_number(of_nvcd.get("busyPercent")),
            memory=_number(of_nvcd.get("used")),
            not_enforced=device.not_enforced or _not_kept(of_nvcd, device),
        ))  # fmt: skip
    return tuple(sorted(found, key=lambda one: one.index))


def _not_kept(of_nvcd: dict[str, Any], device: SliceDeviceStatus) -> str:
    """Why a policy that needs nvcd would not be enforced on a device."""
    by_nvcd = not of_nvcd or of_nvcd.get("time") == "by the driver" or policy_of(device.policy).server
    return "" if by_nvcd else SHIM


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _objects(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    listed = found.get(name)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _step(tenant: SliceStatus, device: dict[str, Any], before: dict[str, Any]) -> float | None:
    """Seconds for which a slice has the device each time, if it leaves it before its timeslice ends: it waits then.

    `device` is nvcd's account of it, `before` an earlier one.
    """
    had = switches = 0
    for sign, at in ((1, device), (-1, before)):
        for one in _objects(at, "processes"):
            if one.get("pid") in tenant.pids:
                had += sign * (_number(one.get("hadNs")) or 0)
                switches += sign * (_number(one.get("switches")) or 0)
    mine = [one for one in _objects(device, "had") if one.get("key") == tenant.entry.key]
    timeslice = (_number(mine[0].get("timesliceUs")) or 0) * 1000 if mine else 0
    return had / switches / 1e9 if switches >= SOME and 0 < had < EARLY * timeslice * switches else None


def _load(picture: Picture, tenant: SliceStatus, device: SliceDeviceStatus, step: float | None) -> Load:
    had: Received | None = picture.received.get((tenant.entry.key, device.uuid))
    # What is measured and was never used has no figures.
    timed = policy_of(device.policy).timed or device.pace is not None
    measured = timed and not tenant.problem and device.measured
    return Load(
        name=tenant.name,
        share=(had.share if had else 0.0) if measured else None,
        waited=had.waited if had and measured else None,
        step=step,
        cores=device.cores,
        weight=device.weight,
        used=None if tenant.problem else device.used + device.moved,
        processes=len(tenant.accounts),
        server=tenant.entry.server == device.uuid,
        first=any(one.uuid == device.uuid and one.asked_policy == FIRST for one in tenant.entry.devices),
    )


def text(advices: tuple[Advice, ...], width: int) -> str:
    """For people, in at most `width` columns; 0: tables as wide as they are, sentences folded at 80."""
    return "\n".join(_one(advice, width) for advice in advices)


def _one(advice: Advice, width: int) -> str:
    now = advice.situation
    head = f"GPU {now.index}  {now.model}  policy {enforced_text(now.policy, now.not_enforced)}"
    busy = f"busy {now.busy}% of the time" if now.busy is not None else "busy: not known"
    memory = f"{short_size(now.memory)} in use" if now.memory is not None else "memory in use: not known"
    rows: list[tuple[str, ...]] = [
        ("SLICE", "UTILIZED", "WAITED", "STEP", "CORES", "WEIGHT", "USED", "PROCESSES", "WORK")
    ]
    for one in now.loads:
        rows.append((
            one.name, percent(one.share), percent(one.waited),
            "-" if one.step is None else f"{one.step * 1000:.1f}ms", f"{one.cores}%" if one.cores else "-",
            str(one.weight), "?" if one.used is None else short_size(one.used), str(one.processes), one.kind,
        ))  # fmt: skip
    lines = [*_folded(f"{head}; {busy}, {memory}", width, 0), ""]
    table = fitted(rows, width and width - INDENT, SPARE, middle=("SLICE",))
    lines += [f"  {line}" for line in table.splitlines()]
    lines.append("")
    verdict = advice.policy if advice.commands else f"leave it at {advice.policy}"
    lines += _folded(f"Advice: {verdict}: {advice.why}.", width, INDENT)
    lines += [f"    {command}" for command in advice.commands]
    return "\n".join(clean((line,))[0] for line in lines) + "\n"


def _folded(words: str, width: int, indent: int) -> list[str]:
    margin = " " * indent
    return wrap(words, max(width or 80, indent + 20), initial_indent=margin, subsequent_indent=margin) or [""]


def document(advices: tuple[Advice, ...], seconds: float) -> dict[str, Any]:
    """Advice for programs; times in seconds, shares as fractions of the time, memory in bytes."""
    return {"seconds": seconds, "devices": [_document(advice) for advice in advices]}


def _document(advice: Advice) -> dict[str, Any]:
    now = advice.situation
    return {
        "uuid": now.uuid,
        "index": now.index,
        "name": now.model,
        "policy": policy_of(now.policy).name,
        "busyPercent": now.busy,
        "used": now.memory,
        "slices": [
            {
                "name": one.name, "utilization": one.share, "waited": one.waited, "step": one.step,
                "cores": one.cores or None, "weight": one.weight, "used": one.used, "processes": one.processes,
                "work": one.kind,
            }
            for one in now.loads
        ],
        "advice": {"policy": advice.policy, "why": advice.why, "commands": list(advice.commands)},
    }  # fmt: skip
