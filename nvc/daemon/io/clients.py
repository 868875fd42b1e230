"""One connection of a process of a slice: what it may send, and how much."""

from __future__ import annotations

from nvc.daemon.io.descriptors import may_bring
from nvc.daemon.io.loop import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from nvc.daemon.audit.last_word import Place
    from nvc.daemon.io.identity import Peer
    from nvc.daemon.schedule.leases import Member
    from nvc.daemon.schedule.slice_index import IndexedSlice

#: Messages that a process may send, in a second and at once. One that has work for a millisecond at a time needs
#: that many.
RATE, BURST = 1000, 1000


#: Taken from the meters at a time, so that most messages cost no arithmetic.
GRAB = 50


class Bucket:
    """Tokens that come back with time."""

    __slots__ = ("rate", "burst", "tokens", "filled")

    def __init__(self, rate: int, burst: int, now: int) -> None:
        self.rate = rate
        self.burst = burst
        self.tokens = float(burst)
        self.filled = now

    def take(self, now: int, count: int = 1) -> bool:
        """Whether there were so many left."""
        self.tokens = min(self.burst, self.tokens + (now - self.filled) * self.rate / SECOND)
        self.filled = now
        if self.tokens < count:
            return False
        self.tokens -= count
        return True


class Client:
    """A connected process."""

    __slots__ = (
        "socket",
        "fd",
        "peer",
        "known",
        "members",
        "bucket",
        "since",
        "greeted",
        "tokens",
        "doomed",
        "living",
        "place",
        "tries",
        "lost",
        "left",
        "careful",
    )

    def __init__(self, connection: socket.socket, peer: Peer, known: IndexedSlice, now: int) -> None:
        self.socket = connection
        self.fd = connection.fileno()
        self.peer = peer
        self.known = known
        self.members: dict[bytes, Member] = {}
        self.bucket = Bucket(RATE, BURST, now)
        self.since = now
        self.greeted = False
        self.tokens = 0  # messages that it may send before the meters are asked again
        self.doomed = 0  # an errno: to be closed
        self.living = -1  # descriptor of the process; see peer_exit.py
        self.place: Place | None = None  # of the process in its slice's ledger, where its time is bounded
        self.tries = 0  # to find that
        self.lost = ""  # why what it says there cannot be known
        self.left = 0  # when its connection was closed
        self.careful = may_bring(connection)  # messages are looked at before they are read
