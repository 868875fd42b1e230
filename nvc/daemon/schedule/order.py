"""Which tenant of a device is next, by their accounts."""

from __future__ import annotations

from operator import attrgetter

from nvc.daemon.schedule.accounts import Accounts
from nvc.daemon.schedule.leases import UNIT
from nvc.slices.model.policy import MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.schedule.gang import Board
    from nvc.daemon.schedule.leases import Lease, ScheduledSlice
    from nvc.slices.policy.entitlement import InForce

FORGIVEN = 64  # of what a tenant is ahead, at most a turn, such a part with each of its turns
BY_TAG, BY_SERVED = attrgetter("tag"), attrgetter("served")
#: Nanoseconds of rest for which a tenant keeps its place before those who owe, and until debts to it are forgotten.
REST, FORGOTTEN = 2 * MS, 500 * MS


class Order(Accounts):
    """The tenants of one device. `deadline` says when to look who is next, None: when something happens."""

    def __init__(self, board: Board, force: InForce) -> None:
        super().__init__(force)
        self.board = board
        self.round = 0  # of the last lease
        self.deadline: int | None = None
        self.line: list[ScheduledSlice] = []  # of gangs: before all others
        self.idle_since = 0

    def choose(self, now: int) -> ScheduledSlice | None:
        """Who gets the next lease. Bounded tenants that are due come first; None: nobody yet, see `deadline`."""
        if not self.bounded and not self.has_gangs():
            return self._choose_in_turn()
        self.advance()
        if self.bounded:
            self.level(now)
        return self._choose_among(now)

    def has_gangs(self) -> bool:
        """Whether one that wants the device wants others at the same time; see gang.py."""
        return not self.board.single and any(map(self.board.is_gang, self.wanting))

    def _choose_in_turn(self) -> ScheduledSlice:
        """Who would be furthest behind after one more turn, but for those who are less than a turn from it.

        Of these it is the one whose last lease is the longest ago. So equals alternate, though no two turns are
        exactly as long, and what one had too much is paid for by a whole turn once it is most of one.

        A part of that is forgiven with each turn: turns of one that are longer by a hundredth, since its program
        begins a moment later, would cost it one of a hundred, and that one step would take twice as long.
        """
        wanting = self.wanting.values()
        first = min(wanting, key=BY_TAG)
        self.account = max(self.account, level_of(first))
        tag = first.tag
        chosen = min([one for one in wanting if one.floor <= tag], key=BY_SERVED)
        ahead = min(chosen.account - self.account, chosen.tag - chosen.account)
        if ahead > 0:
            chosen.stand(chosen.account - ahead // FORGIVEN)
        return chosen

    def _choose_among(self, now: int) -> ScheduledSlice | None:
        best: ScheduledSlice | None = None
        due = soonest = 0
        held_back = False
        gangs = not self.board.single
        halves: dict[float, int] = {}
        for tenant in self.wanting.values():
            if gangs and not self.board.may_lead(self, tenant, now):
                held_back = True
                continue
            rate = tenant.rate
            if not rate:
                if not due and (best is None or tenant.account < best.account):
                    best = tenant
                continue
            if tenant.barred > now:
                soonest = min(soonest or tenant.barred - now, tenant.barred - now)
                continue
            half = halves.get(rate)
            if half is None:
                half = halves[rate] = self.lease_length(tenant) // 2
            self.refill(tenant, now)
            budget = tenant.budget
            # Half a lease at least: what the shim's own cap leaves of less would be many tiny leases.
            missing = half - budget
            if missing >= rate:
                soonest = min(soonest or int(missing / rate), int(missing / rate))
                continue
            behind = int(budget / rate) // 1000 * 1000
            if behind > due or behind == due and best is not None and tenant.account < best.account:
                best, due = tenant, behind
        if best is None and (soonest or held_back):
            self.deadline = now + (soonest or self.quantum)
        return best

    def left_to(self, lease: Lease, tenant: ScheduledSlice, now: int) -> int:
        """How long the holder of a lease without an end keeps it, now that this one wants the device too.

        Beside one with a smaller cap, which holds it back, until the end that the lease would have had if it had
        been given one. Else its holder would drain, be given the next one too, and the device be idle meanwhile.
        """
        holder = lease.tenant
        if self.policy.reclaim:
            return min(self.policy.reclaim, self.quantum * self.policy.quanta)
        if holder is None or not 0 < tenant.rate < (holder.rate or 1):
            return 0
        missing = self.lease_length(tenant) // 2 - self.budget(tenant, now)
        if missing < tenant.rate or self.has_gangs():
            return 0
        lease.due = max(now, lease.began + self.lease_length(holder))
        if lease.due > now:
            self.charge_until(now)
            self.unbind(holder, now)
        return lease.due - now

    def kept_until(self, now: int) -> int:
        """Until when the device is kept for one that rests, since all that want it owe; 0: it is not.

        They would have it for far longer than the rest: they owe since they do not give it back in time.
        """
        wanting = self.wanting.values()
        if not all(one.owed for one in wanting):
            for one in wanting:
                if one.owed:  # it waits, and what it owes becomes less as the others go on
                    others = min(other.account for other in wanting if not other.owed)
                    one.owed = max(min(one.owed, one.account - others), 0)
            return 0
        resting = [one.served for one in self.tenants.values() if not one.owed and one.key not in self.wanting]
        last = max(resting, default=0)
        if now - last > FORGOTTEN:
            for one in wanting:
                one.owed = 0
        return last + REST if now < last + REST else 0

    def reserve(self, tenant: ScheduledSlice | None, now: int) -> None:
        """Keep the device for a gang until it has its others too; None: no longer."""
        self.charge_until(now)
        self.reserved = tenant
        self.deadline = None

    def new_round(self) -> int:
        """The number of the next lease."""
        self.round = self.round + 1 & 0xFFFFFFFF or 1
        return self.round

    def advance(self) -> None:
        """New ones start where the one stands that is furthest behind of those who use the device."""
        if self.wanting:
            self.account = max(self.account, min(map(level_of, self.wanting.values())))

    def _wanting_changed(self, tenant: ScheduledSlice, now: int) -> None:
        """Keep `wanting` right after a member or the terms changed."""
        wants = not tenant.terms.demand.paused and any(member.waits() for member in tenant.members)
        if wants == (tenant.key in self.wanting):
            return
        if not wants:
            del self.wanting[tenant.key]
            self.total -= tenant.weight
            tenant.since = 0
            tenant.left_with, tenant.left = self.budget(tenant, now), now
            if not self.wanting:
                self.account = max(self.account, level_of(tenant))
            if tenant is self.reserved or tenant in self.line:
                self.board.cancel(tenant.key, now)
            return
        self.charge_until(now)
        if self.lease is None and not self.wanting:
            total = sum(other.weight for other in self.tenants.values()) or 1
            self.account += max(0, now - self.idle_since) * UNIT // total
        self.advance()
        tenant.stand(max(tenant.account, self.account))
        if tenant.rate:
            self.refill(tenant, now)
            # Where more is promised than there is, all others have savings.
            most = tenant.rate * self.saved(now)[1]
            # What was lost to a late one is due still, after a rest that its own cap may have brought.
            due = tenant.left_with if now - tenant.left < FORGOTTEN else 0.0
            tenant.budget = min(tenant.budget, max(float(self.lease_length(tenant)), most, due))
        tenant.since = now
        self.wanting[tenant.key] = tenant
        self.total += tenant.weight


def level_of(tenant: ScheduledSlice) -> int:
    """Where somebody stands who comes beside it: what it owes is owed to who rests for a moment, too."""
    return tenant.account - tenant.owed
