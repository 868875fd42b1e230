"""Whose turns come next on a device if nothing happens but turns that end. Pure.

Most turns end as they should, and what follows from that can be said before: the arbiter decides some turns
ahead, with its own means. Somebody else lets them follow each other, and tells afterwards when each began.
"""

from __future__ import annotations

from nvc.daemon.schedule.policy import NATIVE
from nvc.daemon.schedule.turns import Lease

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.schedule.arbiter import Arbiter
    from nvc.daemon.schedule.turns import Member, Tenant


class Turn:
    """One that is foreseen. Nanoseconds."""

    __slots__ = ("member", "round", "length", "held", "rest")

    def __init__(self, member: Member, round: int, length: int, held: int, rest: int = 0) -> None:
        self.member = member
        self.round = round
        self.length = length
        self.held = held  # from its beginning until it is given back
        self.rest = rest  # of the device, before


def foresee(arbiter: Arbiter, most: int) -> list[Turn]:
    """The turn of now and those that follow, `most` in all; empty: the next step is not that simple."""
    lease = arbiter.lease
    if lease is None or lease.tenant is None or not lease.end or lease.dropped or lease.gang:
        return []
    if arbiter.late or arbiter.line or arbiter.reserved is not None or arbiter.policy.number == NATIVE:
        return []
    if arbiter.deadline != lease.end + arbiter.patience():
        return []  # its end was set while it ran
    member = _only(lease.tenant)
    if member is None or lease.holders != {member}:
        return []
    kept = [(one, one.account, one.budget, one.refilled, one.held) for one in arbiter.wanting.values()]
    account, settled, deadline, round = arbiter.account, arbiter.settled, arbiter.deadline, arbiter.round
    turns = [
        Turn(member, lease.round, lease.end - lease.began, _held(lease.tenant, lease.end - lease.began))
    ]
    arbiter.lease = imagined = Lease(lease.tenant, 0, 0, 0, set())
    now = lease.began
    try:
        while len(turns) < most:
            now += turns[-1].held
            arbiter.settle(now)
            arbiter.lease = arbiter.deadline = None
            ended, tenant = now, arbiter.choose(now)
            if tenant is None and arbiter.deadline is not None:
                now = arbiter.deadline
                tenant = arbiter.choose(now)
                arbiter.settled = now
            if tenant is None or arbiter.board.is_gang(tenant.key):
                break
            member = _only(tenant)
            if member is None:
                break
            length = arbiter.length(tenant)
            turns.append(Turn(member, arbiter.new_round(), length, _held(tenant, length), now - ended))
            imagined.tenant, arbiter.lease = tenant, imagined
    finally:
        arbiter.lease = lease
        arbiter.account, arbiter.settled, arbiter.deadline, arbiter.round = account, settled, deadline, round
        for other, at, budget, refilled, held in kept:
            other.account, other.budget, other.refilled, other.held = at, budget, refilled, held
    return turns


def _held(tenant: Tenant, length: int) -> int:
    """It overruns as it did last time."""
    return length + min(tenant.over, length)


def _only(tenant: Tenant) -> Member | None:
    """The process of a tenant that wants turns, where it is one."""
    found = None
    for member in tenant.members:
        if member.wants:
            if found is not None:
                return None
            found = member
    return found


def take_over(arbiter: Arbiter, turn: Turn, ended: int, began: int) -> None:
    """A turn that was foreseen began, some time after the one before it was given back."""
    lease = arbiter.lease
    assert lease is not None and lease.tenant is not None
    arbiter.settle(ended)
    last, member = lease.tenant, turn.member
    last.over = max(0, ended - lease.end)
    last.since = ended
    for holder in lease.holders:
        holder.round = 0
    arbiter.lease = None
    arbiter.settle(began)
    arbiter.advance()
    arbiter.begin(Lease(member.tenant, turn.round, began, began + turn.length, {member}), began)
    arbiter.round = member.round = turn.round
