"""Which slice has the lease of one device. Pure: time is passed in, messages leave through a function.

Turns go round by deficit (accounts.py). All times are nanoseconds of a monotonic clock.
"""

from __future__ import annotations

from nvc.daemon.io.wire import DROP, FREE, GRANT
from nvc.daemon.schedule.lateness import forget_user, give_back
from nvc.daemon.schedule.leases import Lease, Member, ScheduledSlice
from nvc.daemon.schedule.order import Order
from nvc.daemon.schedule.quantum import Fit, learn, quantum_of
from nvc.daemon.schedule.unseen import is_barred
from nvc.slices.model.policy import EQUAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nvc.daemon.schedule.gang import Board
    from nvc.daemon.schedule.quantum import Work
    from nvc.slices.policy.entitlement import InForce, Terms

SPARE = 4  # quanta, of a lease that nobody else waits for


class Arbiter(Order):
    """One device. `deadline` says when `tick` is wanted, None: not before something else happens."""

    def __init__(
        self, board: Board, uuid: bytes, force: InForce, send: Callable[[Member, int, int, int, int], None]
    ) -> None:
        super().__init__(board, force)
        self.send = send
        self.uuid = uuid
        self.lease_count = 0
        self.force = force
        self.learnt = Fit()

    # What happens

    def tenant(self, terms: Terms, now: int) -> ScheduledSlice:
        """The tenant with these terms from now on, made if it is new."""
        found = self.tenants.get(terms.key)
        if found is None:
            found = self.tenants[terms.key] = ScheduledSlice(terms, self.account, now)
            self.weigh()
            found.budget = float(self.lease_length(found))
            self._look_again(now)
        elif found.terms != terms:
            found.terms = terms
            found.take(terms)
            self.weigh()
            self._wanting_changed(found, now)
            if not self.policy.leases:
                self._free_all(found)
            elif terms.demand.paused and self.lease is not None and self.lease.tenant is found:
                self.drop(now)
            self._look_again(now)
        return found

    def forget(self, key: str, now: int) -> None:
        """The tenant is gone, and so are its processes."""
        tenant = self.tenants.get(key)
        if tenant is None:
            return
        for member in tuple(tenant.members):
            self.leave(member, now)
        forget_user(self.late, self.tenants.pop(key))
        self._look_again(now)

    def set_policy(self, force: InForce, now: int) -> None:
        """From now on. A lease lasts to its end; a policy without leases gives each process one without an end."""
        self.charge_until(now)
        self.force, self.costs = force, force.costs
        self.quantum = quantum_of(force, self.learnt.quantum)
        old, self.policy = self.policy, force.policy
        if old == self.policy:
            return
        for terms in force.terms:
            if terms.key in self.tenants:
                self.tenants[terms.key].take(terms)
        self.weigh()
        for tenant in self.tenants.values():
            tenant.stand(self.account)
            tenant.budget, tenant.refilled = float(self.lease_length(tenant)), now
        if not self.policy.leases:
            for tenant in [*self.line, *([self.reserved] if self.reserved else [])]:
                self.board.cancel(tenant.key, now)
            self.lease = self.deadline = None
            for tenant in self.tenants.values():
                tenant.late.clear()
                tenant.unpaid = 0
                self.late.discard(tenant)
                for member in tenant.members:
                    member.round, member.stalled, member.noted = 0, False, {}
                self._wanting_changed(tenant, now)
                self._free_all(tenant)
        elif not old.leases:
            holders = {m for t in self.tenants.values() for m in t.members if m.round}
            self.lease = Lease(None, self.round, now, 0, holders)
            if holders:
                self.drop(now)
            else:
                self._finish(now)
        else:
            self._look_again(now)

    def learn(self, works: Mapping[str, Work], now: int) -> None:
        """Fit the quantum to what the slices do, by their ledgers. It holds for leases that begin from now on."""
        self.learnt = learn(self.learnt, works, now)
        self.quantum = quantum_of(self.force, self.learnt.quantum)

    def _free_all(self, tenant: ScheduledSlice) -> None:
        for member in tenant.members:
            if member.wants and not member.round and not tenant.terms.demand.paused:
                self._hand(member, self.new_round(), FREE, 0)

    def want(self, member: Member, now: int, round: int = 0) -> None:
        """The process has work for the device.

        With a `round`, that lease of its is over, and what it launched under it waits for what it is yet to launch.
        """
        tenant = member.tenant
        if round:
            self._stuck(member, round, now)
            return
        repeated, member.wants = member.wants, True
        if repeated or member in tenant.late:
            return  # it has asked before, or has a lease to give back first
        self._wanting_changed(tenant, now)
        if not tenant.terms.demand.paused:
            self._wants(member, now)

    def _stuck(self, member: Member, round: int, now: int) -> None:
        tenant, lease = member.tenant, self.lease
        if round != member.round or member.stuck:
            return
        if member in tenant.late:
            member.stuck = True
            self._wanting_changed(tenant, now)
            if not tenant.terms.demand.paused:
                self._wants(member, now)
        elif lease is not None and member in lease.holders and (lease.end or lease.dropped):
            member.stuck = True
            self._hand_on(now)  # nobody needs to wait for it

    def _wants(self, member: Member, now: int) -> None:
        tenant, lease = member.tenant, self.lease
        if not self.policy.leases:
            self._hand(member, self.new_round(), FREE, 0)
        elif lease is None:
            self.dispatch(now)
        elif lease.tenant is tenant and not lease.dropped:
            self._end_lateness(member, now)
            lease.holders.add(member)
            left = max(lease.end - now, 0)
            self._hand(member, lease.round, GRANT if lease.end else FREE, left)
        elif lease.tenant is not tenant:
            self._arrived(tenant, lease, now)

    def _arrived(self, tenant: ScheduledSlice, lease: Lease, now: int) -> None:
        """Somebody else wants the device than has it."""
        holder = lease.tenant
        if lease.dropped or holder is None:
            return
        if not lease.end:
            left = self.left_to(lease, tenant, now)
            if left:
                lease.end = self.deadline = now + left
            else:
                self.drop(now)
        elif lease.due < lease.end:
            lease.end = max(now, lease.due)
            self.deadline = lease.end
        elif (
            self.policy.interrupts_at
            and tenant.weight >= self.policy.interrupts_at * holder.weight
            and tenant.account <= holder.account
        ):
            self.drop(now)

    def release(
        self, member: Member, round: int, more: bool, used: int, now: int, runs: bool = False, tail: int = 0
    ) -> bool:
        """The process gives its lease back and may want another; False: it has none of that number.

        Its own meter charged it `used` nanoseconds of GPU time. What it launched `runs` on for a moment; what it
        had under the lease before did so for `tail` nanoseconds.
        """
        if not round or member.round != round:
            return False
        tenant = member.tenant
        member.round = 0
        member.wants = more
        if member in tenant.late:
            self.charge_until(now)
            if member.reports:
                self.settle(member, used, now)
            self._end_lateness(member, now)
            self._wanting_changed(tenant, now)
            if more and not tenant.terms.demand.paused:
                self._wants(member, now)
            return True
        lease = self.lease
        if lease is None or member not in lease.holders:  # under `native`
            self._wanting_changed(tenant, now)
            return True
        lease.holders.discard(member)
        self.charge_until(now)
        if member.left:
            self.pay_tail(member, tail, lease.began)
        if tenant.shared:
            self.send(member, DROP, round, 0, tenant.excess(used))
        if not lease.holders:
            self._finish(now)
        else:
            self._wanting_changed(tenant, now)
        if runs:
            member.left, following = now, self.lease
            member.follower = following if following is not lease else None
        return True

    def stall(self, member: Member, round: int, stalled: bool, used: int, now: int) -> None:
        """What the process launched under a lease that is over waits for the host, and does not run; or runs again.

        The next one begins at once. Its own meter charged the process `used` nanoseconds since the lease began.
        """
        tenant, lease = member.tenant, self.lease
        if not round or member.round != round:
            return
        self.charge_until(now)
        late = member in tenant.late
        over = lease is not None and member in lease.holders and bool(lease.end or lease.dropped)
        if not late and not (stalled and over):
            return
        if late and member.reports:
            self.settle(member, used, now)
        member.stalled, member.since, member.used = stalled, now, used
        member.reports, member.paid, member.solo, member.solo_paid = True, 0, 0, 0
        if late or lease is None:
            return
        lease.holders.discard(member)
        tenant.late.add(member)
        self.late.add(tenant)
        if lease.holders:
            self._wanting_changed(tenant, now)
        else:
            self._finish(now)

    def _end_lateness(self, member: Member, now: int) -> None:
        tenant = member.tenant
        member.stuck = member.stalled = member.reports = False
        member.alone = member.paid = member.solo = member.solo_paid = 0
        if member not in tenant.late:
            return
        self.charge_until(now)
        tenant.late.discard(member)
        if not tenant.late:
            self.late.discard(tenant)
        self.pay(tenant)
        give_back(self, member)

    def leave(self, member: Member, now: int) -> None:
        """The process is gone."""
        tenant, member.wants, member.noted = member.tenant, False, {}  # nobody says what ran
        if member.round:
            self.release(member, member.round, False, 0, now)
        if member.left:  # nobody says for how long
            self.pay_tail(member, now - member.left, now)
        self.end_disturbance(member, now)
        tenant.members.discard(member)
        self._wanting_changed(tenant, now)

    def tick(self, now: int) -> None:
        """The deadline has passed."""
        if self.deadline is None or now < self.deadline:
            return
        lease = self.lease
        if lease is None:
            self.deadline = None
            self.dispatch(now)
        elif not lease.dropped:
            self.drop(now)
        elif now < lease.over + self.patience(lease):
            self.deadline = lease.over + self.patience(lease)
        else:
            self._hand_on(now)

    # Leases

    def drop(self, now: int) -> None:
        """Tell the holders that their lease is over; they have a quantum, or GRACE, to finish and give it back."""
        lease = self.lease
        if lease is None or lease.dropped:
            return
        lease.dropped = True
        lease.over = min(lease.end or now, now)
        self.deadline = lease.over + self.patience(lease)
        for member in tuple(lease.holders):
            self.send(member, DROP, member.round, 0, 0)
        if lease.gang and lease.tenant is not None:
            self.board.drop(lease.tenant.key, now)

    def _hand_on(self, now: int) -> None:
        """Not drained in time: the next one begins, and whoever is late pays for that time too."""
        lease = self.lease
        assert lease is not None
        self.charge_until(now)
        for member in lease.holders:
            tenant = member.tenant
            tenant.late.add(member)
            member.since = now
            tenant.lates += 1
            self.late.add(tenant)
        self._finish(now)

    def _finish(self, now: int) -> None:
        self.charge_until(now)
        lease, self.lease = self.lease, None
        self.deadline = None
        if lease is not None and lease.tenant is not None:
            self.before, tenant = lease, lease.tenant
            lease.ended = tenant.served = now
            tenant.turn = now - lease.began
            tenant.stand(tenant.account)
            if not lease.end:
                self.unbind(tenant, now)
            tenant.since = now if tenant.key in self.wanting else 0
            self._wanting_changed(tenant, now)
        self.dispatch(now)

    def dispatch(self, now: int) -> None:
        """Give the device to the next one, if there is one."""
        if self.lease is not None or self.reserved is not None or not self.policy.leases:
            return
        if not self.wanting:
            self.idle_since, self.deadline = now, None
            return
        self.charge_until(now)
        if self.line:
            tenant = self.line.pop(0)
            self.reserve(tenant, now)
            self.board.gather(tenant.key, now)
            return
        kept = 0 if self.bounded else self.kept_until(now)
        if kept:
            self.deadline = kept
            return
        if not self.contended() and not is_barred(self, now):
            self.grant(next(iter(self.wanting.values())), 0, now, False)
            return
        chosen = self.choose(now)
        if chosen is None:
            return
        if self.board.is_gang(chosen.key):
            self.reserve(chosen, now)
            self.board.gather(chosen.key, now)
        else:
            self.grant(chosen, self.lease_length(chosen), now, False)

    def grant(self, tenant: ScheduledSlice, length: int, now: int, gang: bool) -> None:
        """Begin a lease; without a `length`, one that ends when another tenant wants the device."""
        self.charge_until(now)
        self.reserved = None
        kind = GRANT if length else FREE
        # Beside late ones alone it is not made to drain at the end of each lease: they would have the device then.
        alone = length and len(self.wanting) == 1 and self.policy.bound != EQUAL
        spare = self.quantum * SPARE if alone else 0
        end = now + max(length, spare) if length else 0
        holders = {member for member in tenant.members if member.waits()}
        for member in holders:
            self._end_lateness(member, now)
        lease = Lease(tenant, self.new_round(), now, end, holders)
        lease.due = now + length
        lease.gang = gang
        self.lease = lease
        # The holder knows when its lease ends, and is told only when it is late by half of what it has.
        self.deadline = end + self.grace if end else None
        self.lease_count += 1
        tenant.grants += 1
        if tenant.since:
            tenant.waited += now - tenant.since
            tenant.since = 0
        for member in holders:
            self._hand(member, lease.round, kind, max(length, spare), now)

    def _hand(self, member: Member, round: int, kind: int, length: int, ended: int = 0) -> None:
        member.round, member.used = round, 0
        self.send(member, kind, round, length, ended)

    def _look_again(self, now: int) -> None:
        """Tenants or terms changed."""
        lease = self.lease
        if lease is None:
            self.deadline = None
            self.dispatch(now)
        elif not lease.end and not lease.dropped and lease.tenant is not None and self.contended():
            self.drop(now)
