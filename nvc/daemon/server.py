"""The socket for processes of slices, with the protocol of native/vgpu/protocol.h.

A client costs bounded memory (a socket, a few objects) and bounded time: its messages are rate-limited, and a
client that does not read is closed. Only requests and releases of leases are believed.
"""

from __future__ import annotations

import errno
import socket
import struct
from functools import partial

from nvc.daemon.io import descriptors, host_clock
from nvc.daemon.io.clients import BURST, GRAB, RATE, Bucket, Client
from nvc.daemon.io.identity import peer_of
from nvc.daemon.io.loop import SECOND
from nvc.daemon.io.peer_exit import unwatch, watch
from nvc.daemon.io.wire import (
    ENOUGH,
    GRANT,
    HELLO,
    MAKING,
    MESSAGE,
    NO_UUID,
    REFUSED,
    RELEASE,
    RUNS,
    SIZE,
    STALL,
    TAIL,
    VERSION,
    WANT,
    WELCOME,
)  # fmt: skip
from nvc.daemon.schedule.disturbance import disturb
from nvc.daemon.schedule.leases import Member
from nvc.slices.store.process_view import CpuLimit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.daemon.io.loop import Loop
    from nvc.daemon.schedule.arbiter import Arbiter
    from nvc.daemon.schedule.gang import Board
    from nvc.daemon.schedule.slice_index import IndexedSlice, SliceIndex

CLIENTS_MAX = 4096
PER_SLICE_MAX = 600  # a ledger has room for 512 processes
ACCEPTS = 8  # in one round of the loop
ACCEPT_TIME = 4_000_000  # nanoseconds of a processor: what a process sees can be laborious to look at
ARRIVALS, CROWD = 3000, 2000  # that are looked at in a second, and at once: others wait a moment
GREETING_TIME = 10 * SECOND  # to say hello
PAUSE = SECOND // 20  # that a client is not looked at when it has sent too much
LATE_MAX = 30 * SECOND  # to give back a lease that was handed on
TAIL_MAX = 3600 * SECOND  # that work may go on after its turn
NO_WAIT = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def room_for_one(clients: int) -> int:
    """The maximum number of connections of one slice when there are `clients` in all: a quarter of the rest."""
    return min(PER_SLICE_MAX, (CLIENTS_MAX - clients) // 4)


class Server:
    """The connections of all processes."""

    def __init__(self, loop: Loop, board: Board, slices: SliceIndex, log: Callable[[str], None]) -> None:
        self.loop = loop
        self.board = board
        self.slices = slices
        self.log = log
        self.clients: dict[int, Client] = {}
        self.refused: dict[str, int] = {}  # how often, by cause
        self.messages = 0
        self._doomed: list[Client] = []
        self._closer = descriptors.Closer()
        loop.unfinished = self._doomed
        self._paused: list[Client] = []
        self._meters: dict[str, Bucket] = {}  # of slices
        self._refreshes = Bucket(2, 4, 0)
        self._arrivals = Bucket(ARRIVALS, CROWD, 0)
        self._buffer = bytearray(SIZE + 1)
        self.ahead = host_clock.ahead()
        #: A client first wants a device on which its slice has a cap; it is gone, and its `living` is to be closed.
        self.bounded: Callable[[Client], None] = lambda client: None
        self.parted: Callable[[Client, int], None] = lambda client, now: unwatch(loop, client.living)

    def open(self, listener: socket.socket) -> None:
        """Take connections from a listening socket."""
        descriptors.refuse(listener)
        self.loop.add(listener.fileno(), lambda now: self._accept(listener, now))

    def send(self, member: Member, kind: int, round: int, length: int, excess: int) -> None:
        """A message for a process about a device. One that does not take it is closed afterwards."""
        client = member.client
        assert isinstance(client, Client)
        if kind == GRANT and excess:  # a time
            excess -= self.ahead
        try:
            client.socket.send(MESSAGE.pack(kind, 0, round, member.uuid, length, excess), NO_WAIT)
        except OSError as error:
            self.doom(client, error.errno or errno.EPIPE)

    def _put(self, client: Client, message: bytes) -> None:
        try:
            client.socket.send(message, NO_WAIT)
        except OSError as error:
            self.doom(client, error.errno or errno.EPIPE)

    def fail(self, fd: int, code: int) -> None:
        """A client did not take a message that was sent to it elsewhere."""
        self.doom(self.clients[fd], code)

    def doom(self, client: Client, code: int) -> None:
        """Close the client at the end of this round, when no caller uses its slice any more."""
        if not client.doomed:
            client.doomed = code
            self._doomed.append(client)

    # New connections

    def _accept(self, listener: socket.socket, now: int) -> None:
        limit = CpuLimit(ACCEPT_TIME)
        for _ in range(ACCEPTS):
            if limit.is_over() or not self._arrivals.take(now):
                self.loop.rest(listener.fileno(), now)
                return
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: those who wait are taken later
                self._count(errno.errorcode.get(error.errno or 0, "error"))
                self.loop.rest(listener.fileno(), now)
                return
            connection.setblocking(False)
            code = self._admit(connection, now)
            if code:
                self._count(errno.errorcode[code])
                self._end(connection, code)

    def _admit(self, connection: socket.socket, now: int) -> int:
        """Make a connection a client. Returns 0, or the errno that refuses it."""
        if len(self.clients) >= CLIENTS_MAX:
            return errno.EMFILE
        peer = peer_of(self.slices.kernel, connection, self.slices.entries())
        if peer is None and self._refreshes.take(now):
            self.slices.refresh(now, False)  # its slice may be new
            peer = peer_of(self.slices.kernel, connection, self.slices.entries())
        known = self.slices.by_key.get(peer.entry.key) if peer is not None else None
        if peer is None or known is None:
            return errno.EPERM
        if len(known.clients) >= room_for_one(len(self.clients)):
            return errno.EUSERS
        client = Client(connection, peer, known, now)
        known.clients.add(client)
        known.alive = True
        self.clients[client.fd] = client
        self.loop.add(client.fd, partial(self._ready, client))
        return 0

    # Messages

    def _ready(self, client: Client, now: int) -> None:
        buffer = self._buffer
        if client.tokens:
            client.tokens -= 1
        elif not self._afford(client, now):
            return
        try:
            if client.careful and descriptors.brings(client.socket):
                self.doom(client, errno.EPROTO)
                return
            size = client.socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if size == 0:
            self._close(client, now)
            return
        self.messages += 1
        if size != SIZE:
            code = errno.EMSGSIZE
        else:
            kind, reserved, round, uuid, a, b = MESSAGE.unpack_from(buffer)
            try:
                code = self._hear(client, kind, reserved, round, uuid, a, b, now)
            except struct.error:
                code = errno.EPROTO
        if code:
            self.doom(client, code)

    def _afford(self, client: Client, now: int) -> bool:
        """Whether the client may send more; if not, its messages are left unread for a while."""
        if client.bucket.take(now, GRAB) and self._meter(client.known).take(now, GRAB):
            client.tokens = GRAB - 1
            return True
        self.loop.pause(client.fd, True)
        if not self._paused:
            self.loop.once(now + PAUSE, self._resume)
        self._paused.append(client)
        return False

    def _hear(
        self, client: Client, kind: int, reserved: int, round: int, uuid: bytes, a: int, b: int, now: int
    ) -> int:
        if reserved:
            return errno.EPROTO
        if not client.greeted:
            if kind != HELLO:
                return errno.EPROTO
            if a != VERSION:
                return errno.EPROTONOSUPPORT
            try:
                client.living = watch(
                    self.loop, self.slices.kernel, client, lambda now: self._close(client, now)
                )
            except OSError as error:
                return error.errno or errno.ESRCH
            client.greeted = True
            self._put(client, MESSAGE.pack(WELCOME, 0, 0, NO_UUID, VERSION, 0))
            return 0
        if kind in (RELEASE, STALL):
            member = client.members.get(uuid)
            arbiter = self.board.arbiters.get(uuid)
            tail = b // TAIL
            if tail > TAIL_MAX or b & ENOUGH and b & RUNS:
                return errno.EPROTO
            if member is None or arbiter is None:
                return 0
            if kind == STALL:
                arbiter.stall(member, round, bool(b), a, now)
            else:
                arbiter.release(member, round, not b & ENOUGH, a, now, bool(b & RUNS), tail)
            return 0
        if kind == WANT:
            return self._want(client, uuid, round, now)
        if kind == MAKING:
            return self._making(client, uuid, a != 0, now)
        return errno.EPROTO

    def _want(self, client: Client, uuid: bytes, round: int, now: int) -> int:
        code, arbiter, member = self._member(client, uuid, now)
        if arbiter is not None and member is not None:
            if not client.tries and arbiter.bounded:
                self.bounded(client)
            arbiter.want(member, now, round)
        return code

    def _making(self, client: Client, uuid: bytes, begins: bool, now: int) -> int:
        code, arbiter, member = self._member(client, uuid, now)
        if arbiter is not None and member is not None and arbiter.policy.leases:
            disturb(arbiter, member, begins, now)
        return code

    def _member(self, client: Client, uuid: bytes, now: int) -> tuple[int, Arbiter | None, Member | None]:
        """What a process is to a device's arbiter, made if it is new; or an errno."""
        known = client.known
        if uuid not in known.uuids or uuid == NO_UUID:
            return errno.ENODEV, None, None
        arbiter = self.board.arbiters.get(uuid)
        member = client.members.get(uuid)
        if arbiter is None or member is None or arbiter.tenants.get(known.entry.key) is not member.tenant:
            if self.slices.terms(uuid, known.entry.key) is None:
                self.slices.refresh(now, False)
            terms, arbiter = self.slices.terms(uuid, known.entry.key), self.board.arbiters.get(uuid)
            if terms is None or arbiter is None:
                return errno.ENODEV, None, None
            member = client.members[uuid] = Member(arbiter.tenant(terms, now), client, uuid)
        return 0, arbiter, member

    def _meter(self, known: IndexedSlice) -> Bucket:
        found = self._meters.get(known.entry.key)
        if found is None:
            found = self._meters[known.entry.key] = Bucket(4 * RATE, 4 * BURST, 0)
        return found

    # The end

    def after(self, now: int) -> None:
        """Close the clients that were doomed in this round."""
        while self._doomed:
            client = self._doomed.pop()
            self._count(errno.errorcode.get(client.doomed, str(client.doomed)))
            self._close(client, now, client.doomed)

    def _close(self, client: Client, now: int, code: int = 0) -> None:
        if self.clients.get(client.fd) is not client:
            return  # it is closed already, and another may have its descriptor
        del self.clients[client.fd]
        self.loop.remove(client.fd)
        self._end(client.socket, code)
        client.known.clients.discard(client)
        for uuid, member in client.members.items():
            arbiter = self.board.arbiters.get(uuid)
            if arbiter is not None and arbiter.tenants.get(member.tenant.key) is member.tenant:
                arbiter.leave(member, now)
        client.members.clear()
        self.parted(client, now)

    def _end(self, connection: socket.socket, code: int) -> None:
        """Close a connection, which is told why if `code` is not 0."""
        try:
            if code:
                connection.send(MESSAGE.pack(REFUSED, 0, 0, NO_UUID, code, 0), NO_WAIT)
        except OSError:
            pass
        self._closer.close(connection)

    def _count(self, cause: str) -> None:
        self.refused[cause] = self.refused.get(cause, 0) + 1

    # Now and then

    def _resume(self, now: int) -> None:
        """Read again from clients that had sent too much."""
        waiting, self._paused = self._paused, []
        for client in waiting:
            if self.clients.get(client.fd) is client:
                self.loop.pause(client.fd, False)

    def housekeeping(self, now: int) -> None:
        """Each second: tell waiting clients that nvcd runs, and close clients that are overdue."""
        hello = MESSAGE.pack(WELCOME, 0, 0, NO_UUID, VERSION, 0)
        for client in tuple(self.clients.values()):
            if not client.known.alive:
                self.doom(client, errno.ESTALE)
            elif not client.greeted:
                if now - client.since > GREETING_TIME:
                    self.doom(client, errno.ETIMEDOUT)
                continue
            for member in client.members.values():
                if member in member.tenant.late and not member.stuck and not member.stalled:
                    if now - member.since > LATE_MAX:
                        self.doom(client, errno.ETIMEDOUT)
                elif member.wants and (member.stuck or not member.round):
                    self._put(client, hello)
        for key in [key for key in self._meters if key not in self.slices.by_key]:
            del self._meters[key]
