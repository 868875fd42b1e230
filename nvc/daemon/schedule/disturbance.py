"""What a process takes from others by making a context. Pure.

The driver works on the device for many short moments then, under no lease. The slice of that process is charged
at once. Who has the device meanwhile is not: what it lost is taken off its account and given back to its cap,
little by little, as it was lost. How much that is the host has measured: a process only says when it begins and
ends.
"""

from __future__ import annotations

from nvc.daemon.io.wire import DROP
from nvc.slices.model.policy import MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.schedule.accounts import Accounts
    from nvc.daemon.schedule.arbiter import Arbiter
    from nvc.daemon.schedule.leases import Member, ScheduledSlice

AT_ONCE = 4  # contexts that one process is charged for, and that have taken nothing from others yet
#: All processes that make contexts together are believed to take a quarter of the time at most.
MOST_OF_ALL = 4
#: Nobody loses more after so many times what a context takes, whether or not the process says that it has it.
LASTS = 3
#: Processes that are followed: each charge looks at all of them. A few are enough for all that is believed.
MOST = 64
TOLD = MS  # who has a lease without an end is told of so much


def disturb(arbiter: Arbiter, member: Member, begins: bool, now: int) -> None:
    """A process begins to make a context, or has it now: then it costs no more than the time since it began."""
    arbiter.charge_until(now)
    making = arbiter.costs.making
    if begins:
        if member not in arbiter.disturbing:
            member.disturbs = 0
        cost = min(making, max(0, AT_ONCE * making - member.disturbs))
        member.disturbs += cost
        member.disturbs_since = now
        if len(arbiter.disturbing) < MOST:
            arbiter.disturbing.add(member)
        arbiter.charge(member.tenant, cost)
    else:
        back = max(0, making - (now - member.disturbs_since))
        arbiter.charge(member.tenant, -min(back, member.disturbs))
        member.disturbs = 0
        arbiter.disturbing.discard(member)
    lease = arbiter.lease
    if lease is None or lease.tenant is None or lease.end or not lease.holders:
        return
    if lease.tenant.shared >= TOLD:  # else it is told when it gives the lease back
        holder = next(iter(lease.holders))
        arbiter.send(holder, DROP, holder.round, 0, lease.tenant.shared)
        lease.tenant.shared = 0


def make_good(accounts: Accounts, user: ScheduledSlice, had: int, now: int) -> None:
    """Give the user of the device back what it lost of what it `had` since the last time."""
    lease = accounts.lease
    if lease is not None and not lease.end and user.rate:
        had = int(had * user.rate)  # its cap holds it back: it works for no more of a lease without an end
    most, costs = had // MOST_OF_ALL, accounts.costs
    for member in tuple(accounts.disturbing):
        lost = had * costs.making // costs.lasts
        part = 0 if member.tenant is user else min(member.disturbs, lost, most)
        most -= part
        member.disturbs -= part
        user.shared += part
        accounts.charge(user, -part)
        over = now > member.disturbs_since + LASTS * costs.lasts
        if not member.disturbs or over or member not in member.tenant.members:
            member.disturbs = 0
            accounts.disturbing.discard(member)
