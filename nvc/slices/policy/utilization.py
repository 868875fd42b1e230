"""The utilization of devices by slices, from two readings of their budgets. Pure."""

from __future__ import annotations

from nvc.base.value import Value
from nvc.model.slices.ledger import Budget
from nvc.model.slices.policy import policy_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

#: A tenant's own figures are never believed to be more than this many times the time that has passed.
MOST = 9.99


class Reading(Value):
    """The budgets of all slices at one moment."""

    at: int  # nanoseconds of CLOCK_MONOTONIC
    budgets: dict[tuple[str, str], Budget]  # by the slice's key and the device's UUID


class Received(Value):
    """What a slice used of one device between two readings, as fractions of the time that passed."""

    share: float  # the device was used
    waited: float  # launches were held back; of several threads together, so it may be more than 1
    launches: int


def reading(everybody: tuple[SliceStatus, ...], at: int) -> Reading:
    """The budgets of slices as read at `at`, nanoseconds of CLOCK_MONOTONIC."""
    return Reading(at, {
        (tenant.entry.key, device.uuid): device.budget
        for tenant in everybody
        for device in tenant.devices
        if device.budget is not None and device.measured
    })  # fmt: skip


def received(old: Reading, new: Reading) -> dict[tuple[str, str], Received]:
    """The use of each slice and device in both readings; those that were never measured are left out."""
    found = {}
    for place, budget in new.budgets.items():
        before = old.budgets.get(place)
        if before is not None and (budget.launches or budget.charged):
            passed = max((budget.at or new.at) - (before.at or old.at), 1)
            found[place] = Received(
                _part(budget.charged - before.charged, passed),
                _part(budget.waited - before.waited, passed),
                max(budget.launches - before.launches, 0),
            )
    return found


def _part(amount: int, passed: int) -> float:
    return min(max(amount, 0) / passed, MOST)


def state(tenant: SliceStatus, device: SliceDeviceStatus, had: Received | None) -> str:
    """The state of a slice on a device in one word, for people."""
    if not tenant.alive:
        return "gone"
    if device.hidden:
        return "hidden"
    if tenant.suspension is not None:
        return tenant.suspension.state
    if device.denied:
        return "denied"
    if device.paused:
        return "paused"
    if tenant.problem:
        return "?"
    if had is None:
        return "idle" if device.measured else "-"
    if had.waited > 0:
        return "capped" if device.cores and policy_of(device.policy).timed else "waiting"
    return "busy" if had.launches or had.share > 0 else "idle"


def percent(part: float | None, most: float = 1.0) -> str:
    """A fraction as a percentage, `-` for None.

    Shown as `most` at most: time and its use are not read in the same moment, and waits of several threads add up.
    """
    return "-" if part is None else f"{min(part, most) * 100:.1f}%"
