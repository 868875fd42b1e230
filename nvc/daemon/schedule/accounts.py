"""What the tenants of one device may have of its time, and what they had. Pure.

Each tenant's account runs at the time that it held the device, over its weight, and the one that is furthest behind
is next. So an overrun is paid for later, and who comes back from idleness starts level with the others: it has no
savings, and still has its debts. A tenant with a bound has a budget too. Account and budget are nvcd's own: the
shim writes those of the ledger. `lease_length` decides how long each lease is.
"""

from __future__ import annotations

from nvc.daemon.schedule.disturbance import make_good
from nvc.daemon.schedule.lateness import lend
from nvc.daemon.schedule.leases import UNIT
from nvc.slices.model.policy import EQUAL, MS, NOTHING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.schedule.leases import Lease, Member, ScheduledSlice
    from nvc.slices.policy.entitlement import InForce

DEBT = 30_000_000_000  # nanoseconds; no tenant is held to more than that
#: Nanoseconds after its end that a lease has to be given back: at least so long, since a lease may be shorter than
#: what its holder launches at one time.
GRACE = 10 * MS
#: Nanoseconds for which the driver gives the device to one process before another one that has work: its time
#: slice, as on an H200. The driver can be told another one. It is not measured, since a longer one is no reason to
#: believe that late work had more: it may have waited for the end of the other's.
ALONE = 2_000_000
ROUNDING = 1e-6  # of a sum of parts
#: Nanoseconds from one lease of a tenant with a small cap to its next one, within which its leases are made longer:
#: short ones cost all others more changes of the device.
SOON = 50 * MS
SAVED = 1_000_000_000  # nanoseconds of waiting, for which a bounded tenant is made good


class Accounts:
    """The tenants of one device, and their accounts."""

    def __init__(self, force: InForce) -> None:
        self.policy = force.policy
        self.quantum = force.quantum
        #: What the host has measured. Who is late pays for changes of the device: a process that always has work
        #: loses two of them by a kernel of no length, there and back.
        self.costs = force.costs
        self.tenants: dict[str, ScheduledSlice] = {}
        self.wanting: dict[str, ScheduledSlice] = {}
        self.lease: Lease | None = None
        self.before: Lease | None = None  # the last one that ended
        self.reserved: ScheduledSlice | None = None  # for a gang that is not complete yet
        self.late: set[ScheduledSlice] = set()
        self.disturbing: set[Member] = set()  # who makes a context; see disturbance.py
        self.charged_until = 0  # nanoseconds
        self.account = 0  # where somebody stands who comes new
        self.total = 0  # weight of all that want the device
        self.bounded = False
        self.weigh()

    def weigh(self) -> None:
        """Add weights up again, after terms or the policy changed."""
        self.bounded = self.policy.bound != NOTHING
        self.total = sum(tenant.weight for tenant in self.wanting.values())

    def lease_length(self, tenant: ScheduledSlice) -> int:
        """Nanoseconds of the tenant's next lease: this decides how long leases last.

        With equal weights it is the quantum (see quantum.py), times the policy's `quanta`. With different weights,
        or if the policy bounds slices by their caps, it is a quarter of that to four times as much: so in a round
        each gets about its part of the time. With a cap it is half of that at least, if the next one is not later
        than SOON after it.
        Two things change it later: `Arbiter.grant` makes it longer where nobody else wants the device, and a slice
        that takes several devices at once gets the least of theirs (gang.py). A lease that began without an end may
        get one, see `Order.left_to`.
        """
        whole = self.quantum * self.policy.quanta
        count = max(1, len(self.wanting))
        if self.policy.bound == EQUAL:
            return whole
        if tenant.rate:
            wanted = int(tenant.rate * count * whole)
        else:
            wanted = whole * count * tenant.weight // (self.total or 1)
        shortest = max(whole // 4, min(whole // 2, int(tenant.rate * SOON)))
        return min(max(wanted, shortest), whole * 4)

    @property
    def grace(self) -> int:
        """Nanoseconds from the end of a lease until its holder is told."""
        return max(self.quantum, GRACE) // 2

    def patience(self, lease: Lease) -> int:
        """Nanoseconds from the end of a lease until it is handed on.

        Beside processes of others that are late, what the holder runs takes as many times longer.
        """
        beside = (t for t in self.late if t is not lease.tenant)
        return max(self.quantum, GRACE) * (1 + sum(not one.stalled for tenant in beside for one in tenant.late))

    def contended(self) -> bool:
        """Whether nobody can have the device for good."""
        alone = len(self.wanting) == 1 and not self.late
        return not alone or self.policy.bound == EQUAL and any(one.rate < 1 for one in self.wanting.values())

    def working(self, had: int) -> int:
        """Take the changes off the nanoseconds that a process had of the device in alternation with others."""
        return had * ALONE // (ALONE + self.costs.change)

    def charge_until(self, now: int) -> None:
        """Charge the slices that use the device for the time since the last charge.

        A late slice shares that time with the holder of the lease, as the hardware does: each process that uses the
        device has as much of it as any other. The slice pays when it gives its lease back, or when its next lease
        begins: a debt that grew while it waits would delay that for ever.
        """
        since = self.charged_until
        if now <= since:
            return  # what happened on another device may be told later than what follows from it here
        self.charged_until = now
        lease = self.lease
        user = lease.tenant if lease is not None else self.reserved
        late = {tenant: sum(not one.stalled for one in tenant.late) for tenant in self.late}
        using = {tenant: count for tenant, count in late.items() if count}
        if not using:
            if user is not None:
                self.charge(user, now - since)
                make_good(self, user, now - since, now)
            return
        if user is not None:
            using[user] = using.get(user, 0) + (len(lease.holders) if lease is not None else 0) or 1
        processes = sum(using.values())
        own = 0 if user is None else self.working((now - since) * using[user] // processes)
        if user is not None:
            self.charge(user, own)
            make_good(self, user, own, now)
        others = processes - using.get(user, 0) if user is not None else processes
        for tenant, count in using.items():
            if tenant is user:
                continue
            part = (now - since - own) * count // others
            tenant.unpaid += part
            tenant.held += part
            for one in tenant.late:
                if one.stalled:
                    continue
                if user is None and one.paid == one.solo_paid:
                    one.alone = ALONE  # it runs already when somebody gets a lease
                one.paid += part // count
                if user is None:
                    one.solo += now - since
                    one.solo_paid += part // count
        if user is not None and not late.get(user):
            working = [one for tenant in late for one in tenant.late if not one.stalled]
            lend(user, working, (now - since - own) // others, now)

    def end_disturbance(self, member: Member, now: int) -> None:
        """The process is gone: it takes nothing from others from now on."""
        if member in self.disturbing:
            self.charge_until(now)
            self.disturbing.discard(member)

    def settle(self, member: Member, used: int, now: int) -> None:
        """Charge a late process for what its own meter says it `used`, in all, since its last word.

        The device is given to its work for ALONE before it is shared. While the process said that nothing of it
        ran, it ran nothing that was longer; so that was its alone. It says so a moment after its work has begun.
        """
        ran, member.used = max(0, min(used - member.used, now - member.since)), used
        shared = ran - min(member.solo, ran)
        alone = ran if member.stalled else min(shared, member.alone)
        member.alone = max(0, ALONE - ran) if member.stalled else 0
        changes = 2 * self.costs.change if member.stalled and ran else 0
        count, rest = len(self.late), (ran if member.stalled else shared) - alone
        others = (rest - self.working(rest // (count + 1))) // count
        change = alone + others + changes - (member.paid - member.solo_paid)
        member.paid = member.solo = member.solo_paid = 0
        member.tenant.unpaid += change
        member.tenant.held += change
        lease = self.lease
        if lease is None and self.before is not None:  # without credit, it ended before the other's work
            lease, took = self.before, now - member.since
            change = change * max(0, lease.ended - max(member.since, lease.began)) // max(took, 1)
        user = lease.tenant if lease is not None else None
        if user is not None and user not in self.late:
            user.shared = max(0, user.shared + change)
            self.charge(user, -change)

    def pay(self, tenant: ScheduledSlice) -> None:
        """Charge a tenant for what it had while it was late."""
        unpaid, tenant.unpaid = tenant.unpaid, 0
        tenant.held -= unpaid  # it was counted there before
        before = tenant.account
        self.charge(tenant, unpaid)
        tenant.owed += tenant.account - before

    def charge(self, tenant: ScheduledSlice, held: int) -> None:
        """Charge a tenant for so many nanoseconds; below 0: give them back."""
        tenant.held += held
        account = tenant.account + held * UNIT // tenant.weight
        limit = self.account + DEBT * UNIT // tenant.weight
        if account > limit:
            account = max(limit, tenant.account)
        tenant.stand(account)
        if self.bounded:
            tenant.budget = max(tenant.budget - held, -float(DEBT))

    def pay_tail(self, member: Member, tail: int, now: int) -> None:
        """Charge a tenant for what ran on after it gave a lease back, and not who had the device from then on."""
        follower, member.follower = member.follower, None
        since, member.left = member.left, 0
        tail = min(tail, now - since) if since else 0
        if tail <= 0:
            return
        self.charge(member.tenant, tail)
        if follower is not None and follower.tenant is not None:
            until = min(follower.ended or now, now)
            self.charge(follower.tenant, -min(tail, max(until - follower.began, 0)))

    def refill(self, tenant: ScheduledSlice, now: int) -> None:
        """Bring the budget of a bounded tenant up to date."""
        tenant.budget = self.budget(tenant, now)
        tenant.refilled = now

    def unbind(self, tenant: ScheduledSlice, now: int) -> None:
        """A lease has no end until now: it was not bounded, and saved only what it left to late ones."""
        self.refill(tenant, now)
        tenant.budget = max(tenant.budget, float(self.lease_length(tenant)))

    def saved(self, now: int) -> tuple[float, float]:
        """The least and the most that one that wants the device has saved, in nanoseconds of waiting."""
        found = [
            self.budget(tenant, now) / tenant.rate if tenant.rate else 0.0
            for tenant in self.wanting.values()
        ]
        return min(found, default=0.0), max(found, default=0.0)

    def level(self, now: int) -> None:
        """Take from all what each that wants the device has saved, but for its next lease.

        Where more is promised than there is, all save. Who could save no more would lose its part to the others.
        Elsewhere what is saved is due: it was lost to a late one, and can be had once that is done.
        """
        using = {*self.wanting.values(), *self.late}
        if sum(tenant.rate for tenant in using) < 1 + ROUNDING:
            return
        least, _ = self.saved(now)
        if least <= self.quantum:
            return
        least -= max(self.lease_length(tenant) / tenant.rate for tenant in self.wanting.values())
        if least > 0:
            for tenant in self.tenants.values():  # one that rests is soon back among them
                self.refill(tenant, now)
                tenant.budget -= least * tenant.rate

    def budget(self, tenant: ScheduledSlice, now: int) -> float:
        """What a bounded tenant has then, if nothing happens until then."""
        budget, most = tenant.budget + (now - tenant.refilled) * tenant.rate, SAVED * tenant.rate
        return budget if budget < most else most
