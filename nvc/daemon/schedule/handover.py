"""Ordinary hand-overs, which C makes while nvcd waits: native/core/handover/handover.h.

A turn lasts a few milliseconds, and when it ends, nvcd's code is out of the processor's caches. So the ordinary end
of a turn is handled without Python: the only holder of a lease gives it back and wants another one, other slices
want the device, and nobody is late. Before each wait, such devices are written into records, and what C did is read
from them afterwards. Python does not run in between, so nothing else changes meanwhile. The arbiter does all else.
"""

from __future__ import annotations

from nvc.daemon.schedule.accounts import DEBT
from nvc.daemon.schedule.leases import Lease
from nvc.kernel.handover import HandoverWaiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nvc.daemon.schedule.arbiter import Arbiter
    from nvc.daemon.schedule.gang import Board
    from nvc.daemon.schedule.leases import Member, ScheduledSlice

FARTHEST = 1 << 60  # from the base, of an account in a record


class Handovers:
    """Waits for the descriptors of nvcd's loop. `failed` hears who took no message, and the errno."""

    def __init__(self, board: Board, waiter: HandoverWaiter, failed: Callable[[int, int], None]) -> None:
        self.board = board
        self.waiter = waiter
        self.failed = failed

    def wait(self, until: int) -> list[int]:
        """Descriptors that can be read, as soon as there are some; none: that time or a deadline has come."""
        ordinary = []
        for arbiter in self.board.ordered:
            if is_ordinary(arbiter):
                ordinary.append(arbiter)
            elif arbiter.deadline is not None and arbiter.deadline < until:
                until = arbiter.deadline
        if ordinary:
            self.waiter.room(len(ordinary), max(len(arbiter.wanting) for arbiter in ordinary))
        records = [Record(arbiter, device) for arbiter, device in zip(ordinary, self.waiter.devices)]
        ready, failed = self.waiter.serve(len(records), until)
        for record in records:
            record.read()
        if failed is not None:
            self.failed(*failed)
        return ready


def is_ordinary(arbiter: Arbiter) -> bool:
    """Whether the next turn on a device is likely to end in the ordinary way."""
    lease, wanting = arbiter.lease, arbiter.wanting
    if lease is None or not lease.end or lease.dropped or lease.gang or len(lease.holders) != 1:
        return False
    if arbiter.bounded or arbiter.late or arbiter.disturbing or arbiter.line:
        return False
    if len(wanting) < 2 or arbiter.deadline is None:
        return False
    if lease.tenant is None or lease.tenant.key not in wanting or arbiter.has_gangs():
        return False
    return all(
        not one.shared and not one.owed and abs(one.account - arbiter.account) < FARTHEST
        for one in wanting.values()
    )


class Record:
    """What C is told of one device, and said of it."""

    def __init__(self, arbiter: Arbiter, device: Any) -> None:
        lease = arbiter.lease
        assert lease is not None and lease.tenant is not None and arbiter.deadline is not None
        self.arbiter, self.device = arbiter, device
        self.base = arbiter.account
        self.tenants = list(arbiter.wanting.values())
        self.members: list[Member | None] = [only_member(tenant) for tenant in self.tenants]
        device.count = len(self.tenants)
        device.holder = self.tenants.index(lease.tenant)
        device.leader = -1
        device.round = lease.round
        device.began, device.charged_until = lease.began, arbiter.charged_until
        device.account, device.debt = 0, DEBT
        device.grace, device.deadline = arbiter.grace, arbiter.deadline
        device.first_over = 0
        device.uuid = arbiter.uuid
        for place, (tenant, member) in enumerate(zip(self.tenants, self.members)):
            device.tenants[place] = self._tenant(tenant, member, place)

    def _tenant(self, tenant: ScheduledSlice, member: Member | None, place: int) -> tuple[int, ...]:
        """In the order of struct nvc_handover_tenant."""
        left, began, ended, follower, fd, tokens = 0, 0, 0, -1, -1, 0
        if member is not None:
            fd, tokens = member.client.fd, member.client.tokens
            left, lease = member.left, member.follower
            if lease is not None:
                began, ended = lease.began, lease.ended
                if lease is self.arbiter.lease:
                    self.device.leader = place
                if lease.tenant in self.tenants and (ended or lease is self.arbiter.lease):
                    follower = self.tenants.index(lease.tenant)
        return (
            tenant.account - self.base, tenant.weight, self.arbiter.lease_length(tenant), tenant.turn,
            tenant.served, tenant.since, left, began, ended, follower, fd, tokens, 0, 0, 0,
        )  # fmt: skip

    def read(self) -> None:
        """Make what C did be so."""
        device, arbiter = self.device, self.arbiter
        old = arbiter.lease
        if not device.first_over or old is None:
            return
        old.ended = device.first_over
        for one in old.holders:
            one.round = 0
        old.holders.clear()
        holder = device.holder
        chosen, sole = self.tenants[holder], self.members[holder]
        assert sole is not None
        end = device.began + device.length
        lease = arbiter.lease = Lease(chosen, device.round, device.began, end, {sole})
        sole.round, sole.used = device.round, 0
        arbiter.round, arbiter.deadline = device.round, device.deadline
        arbiter.charged_until, arbiter.account = device.charged_until, self.base + device.account
        for place, (tenant, member) in enumerate(zip(self.tenants, self.members)):
            record = device.tenants[place]
            tenant.turn, tenant.served, tenant.since = record.turn, record.served, record.since
            tenant.held += record.held
            tenant.waited += record.waited
            tenant.grants += record.grants
            arbiter.lease_count += record.grants
            tenant.stand(self.base + record.account)
            if member is not None:
                self._read_member(member, record, lease if device.leader == place else None)

    def _read_member(self, member: Member, record: Any, following: Lease | None) -> None:
        member.client.tokens = record.tokens
        member.left = record.left
        if following is not None or not record.left:
            member.follower = following
        elif record.follower >= 0:
            tenant = self.tenants[record.follower]
            member.follower = Lease(tenant, 0, record.follower_began, 0, set())
            member.follower.ended = record.follower_ended


def only_member(tenant: ScheduledSlice) -> Member | None:
    """The process of a slice that wants the device, if it is the only one and its work waits for nothing."""
    waiting = [member for member in tenant.members if member.waits()]
    found = waiting[0] if len(waiting) == 1 else None
    return None if found is None or found.stuck or found.stalled else found
