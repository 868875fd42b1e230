"""What an arbiter keeps of tenants, their processes and the lease of now."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from nvc.slices.policy.entitlement import Terms

    class Connection(Protocol):
        """What the schedule knows of the connection of a process."""

        fd: int
        tokens: int  # messages that it may send before the meters are asked again


UNIT = 1 << 10  # of an account: nanoseconds times this, over the weight


class Member:
    """What one process has to do with one device."""

    __slots__ = (
        "tenant", "client", "uuid", "wants", "stuck", "stalled", "reports", "round", "since", "used",
        "alone", "paid", "left", "follower", "solo", "solo_paid", "disturbs", "disturbs_since", "noted",
    )  # fmt: skip

    def __init__(self, tenant: ScheduledSlice, client: Connection, uuid: bytes = b"") -> None:
        self.tenant = tenant
        self.client = client
        self.uuid = uuid
        self.wants = False
        self.stuck = False  # what it launched before its lease ended waits for what it is yet to launch
        self.stalled = False  # late, but what it launched waits for the host, and does not run
        self.reports = False  # it says when that changes
        self.round = 0  # of the lease that it holds; 0: none
        self.since = 0  # late, or late and stalled, or no longer stalled
        self.used = 0  # nanoseconds under its lease, as it last said
        self.alone = 0  # of what it will use, so much is its alone
        self.paid = 0  # charged since its last word
        self.solo = self.solo_paid = 0  # of that time, and of what was charged: while nobody had a lease
        self.left = 0  # when it gave a lease back before its work had ended; 0: it had
        self.follower: Lease | None = None  # that began then, another tenant's
        self.disturbs = 0  # what others are yet to lose by a context that it makes
        self.disturbs_since = 0  # when it began with the last one
        self.noted: dict[ScheduledSlice, int] = {}  # of others' leases, what it had while late; see lateness.py
        tenant.members.add(self)

    def waits(self) -> bool:
        """Whether it is to have a lease. One that is late gives its lease back first, unless it is stuck."""
        return self.wants and (self.stuck or self not in self.tenant.late)


class ScheduledSlice:
    """One slice on one device, as the arbiter schedules it. Times in nanoseconds."""

    __slots__ = (
        "key", "terms", "members", "late", "account", "weight", "rate", "budget", "refilled",
        "held", "unpaid", "shared", "waited", "since", "grants", "lates", "turn", "served", "tag", "floor", "owed",
        "left_with", "left", "barred",
    )  # fmt: skip

    def __init__(self, terms: Terms, account: int, now: int) -> None:
        self.key = terms.key
        self.terms = terms
        self.members: set[Member] = set()
        self.late: set[Member] = set()  # whose lease was handed on before they gave it back
        self.turn = 0  # how long it had its last lease
        self.served = 0  # when that ended
        self.take(terms)
        self.stand(account)
        self.budget = 0.0
        self.refilled = now
        self.left_with = 0.0  # its budget when it last wanted the device no longer, which was at `left`
        self.left = now
        self.held = 0  # in all
        self.barred = 0  # until then it gets no lease: it pays for what it had unseen
        self.owed = 0  # of its account, what it had while it was late; see Order.level_of
        self.unpaid = 0  # of that, while it was late
        self.shared = 0  # of its lease, what late ones had: its processes are yet to be told
        self.waited = 0  # in all, for a lease
        self.since = 0  # waiting; 0: it is not
        self.grants = 0
        self.lates = 0

    def take(self, terms: Terms) -> None:
        """Be scheduled by other terms; `rate` is the part of the time that it gets at most, 0: no bound."""
        self.weight, self.rate = terms.weight, terms.bound

    def stand(self, account: int) -> None:
        """Move its account there. After another turn like its last one it is at `tag`; see Order."""
        turn = self.turn * UNIT // self.weight
        self.account = account
        self.tag = account + turn
        self.floor = account + turn // 4

    def excess(self, used: int) -> int:
        """What its cap was charged for while late tenants had a part of the device; told once, to one process.

        A kernel beside those of a late one takes as much longer, and its process is charged for all of it: of what
        it `used` no more than that is given back.
        """
        excess, self.shared = min(self.shared, used), 0
        return excess


class Lease:
    """The lease of a device."""

    __slots__ = ("tenant", "round", "began", "ended", "end", "due", "over", "holders", "dropped", "gang")

    def __init__(
        self, tenant: ScheduledSlice | None, round: int, began: int, end: int, holders: set[Member]
    ) -> None:
        self.tenant = tenant  # None: everybody's, from before there were leases
        self.round = round
        self.began = began
        self.ended = 0
        self.end = end  # 0: until another tenant wants the device
        self.due = end  # when another one may have the device, if one wants it
        self.holders = holders  # who has not given it back
        self.dropped = False
        self.over = 0  # when its holders were told to give it back, or were to know
        self.gang = False
