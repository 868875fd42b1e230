"""The devices of a host together: a container that wants several that others want too has its lease on all at once.

Devices are taken in the order of their UUIDs, so that no two containers wait for each other: the first one decides
when the container gets its lease, and the others are then freed for it. A device that nobody else wants is no part
of it. Pure, like the arbiters.
"""

from __future__ import annotations

from nvc.daemon.schedule.arbiter import Arbiter
from nvc.daemon.schedule.leases import UNIT
from nvc.slices.policy.entitlement import InForce

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.daemon.schedule.leases import Member, ScheduledSlice
    from nvc.daemon.schedule.order import Order


class Board:
    """All arbiters of a host."""

    def __init__(self, send: Callable[[Member, int, int, int, int], None]) -> None:
        self.send = send
        self.arbiters: dict[bytes, Arbiter] = {}
        self.single = False  # then there are no gangs
        self.ordered: list[Arbiter] = []

    def enforce(self, uuid: bytes, force: InForce, now: int) -> None:
        """From now on this holds for the device, whose arbiter is made if it is new."""
        arbiter = self.arbiters.get(uuid)
        if arbiter is None:
            arbiter = self.arbiters[uuid] = Arbiter(self, uuid, force, self.send)
            self._sort()
        arbiter.set_policy(force, now)
        # A slice that gives its leases up is a tenant until it goes: its processes may still have one.
        kept = {one.key: one for one in force.terms if one.leased or one.key in arbiter.tenants}
        for terms in kept.values():
            arbiter.tenant(terms, now)
        for key in [key for key in arbiter.tenants if key not in kept]:
            arbiter.forget(key, now)

    def remove(self, uuid: bytes) -> None:
        """The device has no tenants any more."""
        del self.arbiters[uuid]
        self._sort()

    def _sort(self) -> None:
        self.ordered = [self.arbiters[uuid] for uuid in sorted(self.arbiters)]
        self.single = len(self.ordered) == 1

    def tick(self, now: int) -> None:
        """Let each arbiter do what is due."""
        for arbiter in self.ordered:
            if arbiter.deadline is not None and now >= arbiter.deadline:
                arbiter.tick(now)

    # What arbiters ask

    def _gang(self, key: str) -> list[Arbiter]:
        return [
            arbiter
            for arbiter in self.ordered
            if key in arbiter.wanting and arbiter.policy.leases and arbiter.contended()
        ]

    def is_gang(self, key: str) -> bool:
        """Whether the tenant wants several devices that others want too."""
        return not self.single and len(self._gang(key)) > 1

    def may_lead(self, arbiter: Order, tenant: ScheduledSlice, now: int) -> bool:
        """Whether a lease of the tenant may begin on this device."""
        gang = self._gang(tenant.key)
        if len(gang) < 2:
            return True
        if gang[0] is not arbiter:
            return False
        return all(_is_due(other, tenant.key, now) for other in gang[1:])

    def gather(self, key: str, now: int) -> None:
        """Go on with taking the devices of a gang; with all of them its lease begins."""
        reserved = [arbiter for arbiter in self.ordered if _has(arbiter.reserved, key)]
        # Only what comes after them: one that others have come to want meanwhile might be kept by who waits for us.
        missing = [arbiter for arbiter in self._gang(key) if arbiter.uuid > reserved[-1].uuid]
        for arbiter in missing:
            lease = arbiter.lease
            if lease is None and arbiter.reserved is None:
                arbiter.reserve(arbiter.tenants[key], now)
                reserved.append(arbiter)
            elif lease is None or lease.dropped or not _has(lease.tenant, key):
                if not any(_has(waiting, key) for waiting in arbiter.line):
                    arbiter.line.append(arbiter.tenants[key])
                arbiter.drop(now)
                return
        length = min(arbiter.lease_length(arbiter.tenants[key]) for arbiter in reserved)
        for arbiter in reserved:
            if _has(arbiter.reserved, key):
                arbiter.grant(arbiter.tenants[key], length, now, True)

    def cancel(self, key: str, now: int) -> None:
        """A gang that was being gathered does not want one of its devices any more."""
        freed = []
        for arbiter in self.ordered:
            arbiter.line = [tenant for tenant in arbiter.line if tenant.key != key]
            if _has(arbiter.reserved, key):
                arbiter.reserve(None, now)
                freed.append(arbiter)
        for arbiter in freed:
            arbiter.dispatch(now)

    def drop(self, key: str, now: int) -> None:
        """The lease of a gang ends on all its devices."""
        for arbiter in self.ordered:
            lease = arbiter.lease
            if lease is not None and lease.gang and _has(lease.tenant, key):
                arbiter.drop(now)


def _has(tenant: ScheduledSlice | None, key: str) -> bool:
    return tenant is not None and tenant.key == key


def _is_due(arbiter: Arbiter, key: str, now: int) -> bool:
    """Whether a tenant is at most a lease ahead of the others on a device."""
    tenant = arbiter.tenants[key]
    if tenant.rate:
        return arbiter.budget(tenant, now) > 0
    if arbiter.lease is None and arbiter.reserved is None:
        return True  # nobody could have it: each who waits is ahead of another one on some device, maybe
    others = [other.account for other in arbiter.wanting.values() if other is not tenant]
    ahead = tenant.account - min(others, default=tenant.account)
    return ahead <= arbiter.lease_length(tenant) * UNIT // tenant.weight
