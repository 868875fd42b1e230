"""The ordinary end of a turn, and the beginning of the next one, in one step."""

from __future__ import annotations

from nvc.daemon.io.wire import GRANT
from nvc.daemon.schedule.accounts import DEBT
from nvc.daemon.schedule.leases import UNIT, Lease, Member
from nvc.daemon.schedule.order import Order
from nvc.slices.model.policy import MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.daemon.schedule.gang import Board
    from nvc.slices.policy.entitlement import InForce

#: Nanoseconds after its end that a lease has to be given back: at least so long, since a lease may be shorter than
#: what its holder launches at one time.
GRACE = 10 * MS


class Turns(Order):
    """The leases of one device. What is sent goes through `send`."""

    def __init__(
        self, board: Board, force: InForce, send: Callable[[Member, int, int, int, int], None]
    ) -> None:
        super().__init__(board, force)
        self.send = send
        self.lease_count = 0

    def _pass_on(self, member: Member, tail: int, now: int) -> bool:
        """Let the next one have the lease that its last holder gives back, and wants again; False: not done.

        The arbiter's general way leads to the same. But whenever a turn ends, nvcd's code is out of the caches of
        the processor, so fewer functions cost less.
        """
        lease, wanting, tenant = self.lease, self.wanting, member.tenant
        if lease is None or not lease.end or lease.holders != {member}:
            return False
        if self.late or self.bounded or tenant.shared or self.line or not self.board.single:
            return False
        account = tenant.account + max(now - self.charged_until, 0) * UNIT // tenant.weight
        if (
            len(wanting) < 2
            or tenant.key not in wanting
            or account > self.account + DEBT * UNIT // tenant.weight
        ):
            return False
        member.round, member.wants = 0, True
        if now > self.charged_until:
            tenant.held += now - self.charged_until
            self.charged_until = now
        tenant.account = account
        if member.left:
            self.pay_tail(member, tail, lease.began)
        tenant.served = tenant.since = lease.ended = now
        tenant.turn = now - lease.began
        tenant.stand(tenant.account)
        lease.holders.clear()

        chosen = self._choose_in_turn()
        length = self.length(chosen)
        holders = {one for one in chosen.members if one.waits()}
        self.round = self.round + 1 & 0xFFFFFFFF or 1
        self.lease = Lease(chosen, self.round, now, now + length, holders)
        self.deadline = now + length + max(self.quantum, GRACE) // 2
        self.lease_count += 1
        chosen.grants += 1
        chosen.waited += now - chosen.since
        chosen.since = 0
        for one in holders:
            one.stuck = one.stalled = False
            one.round, one.used = self.round, 0
            self.send(one, GRANT, self.round, length, now)
        return True
