"""Charges slices with a cap for work of processes that were stopped, and killed before they could go on.

A process that has unfinished work says so in the ledger at least each ALIVE, and its slice is charged by that. One
that is stopped says nothing while its work runs, and once it is killed no shim knows when that was. nvcd does: what
may have run from the last word to the end is charged here, and the slice waits until its cap has allowed that much.

Most programs that are stopped have nothing left on the device soon. So the times in which NVML saw nothing of the
process are not charged. A process may lie in the ledger: that is as if it had left the shim.
"""

from __future__ import annotations

from collections import deque

from nvc.daemon.audit.last_word import last_word, place_of
from nvc.daemon.audit.nvml_client import USE_PERIOD
from nvc.daemon.io.identity import pid_inside
from nvc.daemon.io.peer_exit import unwatch, watch_on
from nvc.daemon.schedule.unseen import MOST, owe
from nvc.slices.model.ledger import LedgerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.audit.accountant import Accountant
    from nvc.daemon.io.clients import Client
    from nvc.daemon.io.loop import Loop
    from nvc.daemon.schedule.gang import Board

ALIVE = 25_000_000  # nanoseconds: ALIVE_NS of native/vgpu/budget.c
#: Processes that outlive their connection and are waited for: of all slices, and of one.
WAITING, OF_ONE = 1024, 128
AT_ONCE = 1_000_000_000  # nanoseconds from the end of a connection to that of its process, if it ends by that
TRIES = 8  # looks for the slot of a process, which it has when it makes a context

Name = tuple[int, int]  # of a process: number and start


class Killed:
    """Waits for the ends of processes whose slices have caps, and charges for what they did not say."""

    def __init__(self, loop: Loop, board: Board, accountant: Accountant, ahead: int) -> None:
        self.loop = loop
        self.board = board
        self.accountant = accountant
        self.ahead = ahead  # nanoseconds of nvcd's clock, of the host's: the ledger's
        self.waiting: dict[Name, Client] = {}
        #: From when to when NVML told of use, and of whom, by UUID in lower case.
        self.windows: deque[tuple[int, int, dict[str, set[Name]]]] = deque(maxlen=MOST // USE_PERIOD)
        self._told = 0

    def told(self, now: int) -> None:
        """After an answer of NVML."""
        for known in self.accountant.slices.by_key.values():
            for client in known.clients:
                if any(member.tenant.rate for member in client.members.values()):
                    self.meet(client)
        if not self.accountant.use_is_new:
            return
        users: dict[str, set[Name]] = {
            uuid: set() for uuid, error in self.accountant.sampled.items() if error == 0
        }
        for one in self.accountant.use:
            users.setdefault(one.uuid, set()).add((one.pid, one.start))
        self.windows.append((self._told, now, users))
        self._told = now

    def meet(self, client: Client) -> None:
        """The client wants a device on which its slice has a cap: remember its slot in the ledger."""
        fd = self.accountant.ledger_of(client.known.entry.key)
        if client.place is not None or fd < 0 or client.tries >= TRIES:
            return
        client.tries += 1
        before = self.waiting.pop((client.peer.pid, client.peer.start), None)
        if before is not None:  # it has connected again
            unwatch(self.loop, before.living)
        try:
            client.place = place_of(fd, pid_inside(client.peer.pid))
        except (OSError, LedgerError):
            client.tries = TRIES  # it has ended, or has broken its ledger: nobody knows what it has

    def parted(self, client: Client, then: int) -> None:
        """The client's connection was closed then. Its process ends at that time, or later, or connects again."""
        name = client.peer.pid, client.peer.start
        if client.place is None or name in self.waiting or not self._has_room(client):
            unwatch(self.loop, client.living)
            return
        self.waiting[name] = client
        watch_on(self.loop, client.living, lambda now: self._ended(name, then, now))

    def _has_room(self, client: Client) -> bool:
        of_one = sum(one.known is client.known for one in self.waiting.values())
        return len(self.waiting) < WAITING and of_one < OF_ONE

    def _ended(self, name: Name, parted: int, now: int) -> None:
        client = self.waiting.pop(name)
        unwatch(self.loop, client.living)
        known = client.known
        key = known.entry.key
        fd = self.accountant.ledger_of(key)
        if fd < 0 or client.place is None or self.accountant.slices.by_key.get(key) is not known:
            return
        for position, uuid in enumerate(known.uuids):
            arbiter = self.board.arbiters.get(uuid)
            if arbiter is None:
                continue
            try:
                word = last_word(fd, client.place, position)
            except (OSError, LedgerError):
                self.accountant.forget(key)
                return
            since = word.seen + self.ahead
            # What another one has cleared up long ago was finished: the process went on.
            doubted = word.unfinished is None and now - parted < AT_ONCE
            if client.since <= since < now - ALIVE and (word.unfinished or doubted):
                device = known.devices[position].uuid.lower()
                owe(arbiter, key, self._unseen(name, device, since, now, doubted), now)

    def _unseen(self, name: Name, uuid: str, since: int, now: int, doubted: bool) -> int:
        """How long the work of a process may have run that said nothing in that time.

        Where that is `doubted`, only what NVML saw counts, and what is too recent for that.
        """
        told = [
            (began, ended, name in users[uuid])
            for began, ended, users in self.windows
            if began >= since and uuid in users
        ]
        if not doubted:
            return min(now - since - sum(ended - began for began, ended, used in told if not used), MOST)
        recent = now - max((ended for _, ended, _ in told), default=since)
        return min(sum(ended - began for began, ended, used in told if used) + min(recent, USE_PERIOD), MOST)
