"""What slices received of their devices' time, from two readings of budgets, and what they may expect. Pure."""

from __future__ import annotations

from nvc.slices.model.ledger import Budget
from nvc.slices.model.shares import policy_name
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.slices.store.tenants import Tenant, TenantDevice

#: A tenant's own figures are never believed to be more than this many times the time that has passed.
MOST = 9.99


class Reading(Value):
    """Every budget at one moment."""

    at: int  # nanoseconds of CLOCK_MONOTONIC
    budgets: dict[tuple[str, str], Budget]  # by the slice's key and the device's UUID


class Received(Value):
    """What a slice had of one device between two readings, as parts of the time that passed."""

    share: float  # the device was used
    waited: float  # launches were held back; of several threads together, so it may be more than 1
    launches: int


def reading(everybody: tuple[Tenant, ...], at: int) -> Reading:
    """The budgets of slices as they were looked up at `at`."""
    return Reading(
        at,
        {
            (tenant.entry.key, device.uuid): device.budget
            for tenant in everybody
            for device in tenant.devices
            if device.budget is not None
        },
    )


def received(old: Reading, new: Reading) -> dict[tuple[str, str], Received]:
    """For each slice and device that is in both readings. Who has never been measured is not there."""
    passed = max(new.at - old.at, 1)
    found = {}
    for place, budget in new.budgets.items():
        before = old.budgets.get(place)
        if before is not None and (budget.launches or budget.charged):
            found[place] = Received(
                _part(budget.charged - before.charged, passed),
                _part(budget.waited - before.waited, passed),
                max(budget.launches - before.launches, 0),
            )
    return found


def _part(amount: int, passed: int) -> float:
    return min(max(amount, 0) / passed, MOST)


def expected(everybody: tuple[Tenant, ...], maximum: dict[str, int]) -> dict[tuple[str, str], float]:
    """The part of each device that a slice with enough work gets when all others are as busy.

    `maximum` has the largest number of slices for devices that have one: `fair` divides by that. Under `native`
    nobody knows, and there is no entry.
    """
    sharing: dict[str, list[tuple[Tenant, TenantDevice]]] = {}
    for tenant in everybody:
        for device in tenant.devices:
            if tenant.alive and not device.hidden:
                sharing.setdefault(device.uuid, []).append((tenant, device))
    found = {}
    for uuid, all_of_it in sharing.items():
        devices = [device for _, device in all_of_it]
        for number, (tenant, _) in enumerate(all_of_it):
            part = _expected(number, devices, maximum.get(uuid, 0))
            if part:
                found[tenant.entry.key, uuid] = part
    return found


def _expected(number: int, devices: list[TenantDevice], maximum: int) -> float:
    policy = policy_name(devices[number].policy)
    if policy == "fair":
        return min(_cap(devices[number]), 1 / max(len(devices), maximum))
    if policy == "preempt":
        return filled(list(map(_cap, devices)), [1] * len(devices))[number]
    if policy in ("weight", "soft"):
        weights = [max(device.weight, 1) for device in devices]
        return filled(list(map(_cap, devices)), weights)[number]
    return _cap(devices[number]) if policy == "fixed" else 0.0


def filled(caps: list[float], weights: list[int]) -> list[float]:
    """The part of each by its weight; what a cap, of 1 for all of it, keeps one from goes to the others."""
    parts = [*caps]
    left, rest = 1.0, list(range(len(caps)))
    while rest:
        all_weights = sum(weights[number] for number in rest)
        wanting = [number for number in rest if parts[number] > left * weights[number] / all_weights]
        if len(wanting) == len(rest):
            for number in rest:
                parts[number] = left * weights[number] / all_weights
            break
        left -= sum(parts[number] for number in rest if number not in wanting)
        rest = wanting
    return parts


def _cap(device: TenantDevice) -> float:
    return device.cores / 100 or 1.0


def state(tenant: Tenant, device: TenantDevice, had: Received | None) -> str:
    """One word for what the slice does on a device."""
    if not tenant.alive:
        return "gone"
    if device.hidden:
        return "hidden"
    if device.denied:
        return "denied"
    if device.paused:
        return "paused"
    if tenant.problem:
        return "?"
    if had is None:
        return "idle" if device.cores else "-"  # time is measured where it is bounded or taken in turns
    if had.waited > 0:
        return "capped" if device.cores else "waiting"
    return "busy" if had.launches or had.share > 0 else "idle"


def percent(part: float | None) -> str:
    """A part for people; `-` where there is none."""
    return "-" if part is None else f"{part * 100:.1f}%"
