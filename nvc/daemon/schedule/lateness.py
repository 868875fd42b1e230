"""What one tenant loses beside work of another one that ends late. Pure.

The holder of a lease shares the device with work of others that is late, and its own meter charges it for both. For
LENT, nvcd gives the others' part back at once. After that it only notes it: nobody knows yet whether that work runs
or waits for something, and nobody is to have more than its cap for as long as another one never gives its lease
back. When that one does, it pays for all of that time, and what was noted is given back too.
"""

from __future__ import annotations

from nvc.daemon.io.wire import DROP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.schedule.arbiter import Arbiter
    from nvc.daemon.schedule.leases import Member, ScheduledSlice

#: Nanoseconds for which a late process counts as one that works.
LENT = 500_000_000


def lend(user: ScheduledSlice, late: list[Member], each: int, now: int) -> None:
    """Give back, or note, what each of the late processes had of the user's time: so many nanoseconds."""
    for one in late:
        if now - one.since < LENT:
            user.shared += each
        else:
            one.noted[user] = one.noted.get(user, 0) + each


def forget_user(late: set[ScheduledSlice], user: ScheduledSlice) -> None:
    """The user is gone: nothing is noted for it."""
    for tenant in late:
        for one in tenant.late:
            one.noted.pop(user, None)


def give_back(arbiter: Arbiter, late: Member) -> None:
    """The process is late no longer: tell those who had the device meanwhile what was noted.

    No more than LENT: a cap saves no more, and a meter that falls by more looks like use that nobody can explain.
    """
    for user, part in late.noted.items():
        member = next(iter(user.members), None)
        if user.rate and member is not None:
            arbiter.send(member, DROP, member.round, 0, min(part, LENT))
    late.noted.clear()
