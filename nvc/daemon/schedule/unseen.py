"""Use of a device that the cap of a slice was not charged for, and that only nvcd knows of. Pure.

The budget in accounts.py does not hold a slice to that: one that has a device alone has a new budget afterwards,
since its shim charges its cap meanwhile. So it is barred from leases, as long as its cap takes to allow that use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.schedule.accounts import Accounts
    from nvc.daemon.schedule.arbiter import Arbiter


MOST = 600_000_000_000  # nanoseconds: LEDGER_DEBT of native/vgpu/budget.c, the most that a slice owes


def owe(arbiter: Arbiter, key: str, unseen: int, now: int) -> None:
    """The slice may have had the device for so many nanoseconds up to now. Its cap allowed a part of that."""
    tenant, lease = arbiter.tenants.get(key), arbiter.lease
    if tenant is None or not tenant.rate or unseen <= 0:
        return
    barred = max(tenant.barred, now - unseen) + int(unseen / tenant.rate)
    tenant.barred = min(barred, now + int(MOST / tenant.rate))  # many processes may have had the same time
    if tenant.barred > now and lease is not None and lease.tenant is tenant:
        arbiter.drop(now)  # another process of it has that


def is_barred(accounts: Accounts, now: int) -> bool:
    """Whether one that wants the device is not to have it, though nobody else wants it."""
    return accounts.bounded and any(tenant.barred > now for tenant in accounts.wanting.values())
