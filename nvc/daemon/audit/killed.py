"""Charges slices with a cap for work of processes that were stopped, and killed before they could go on.

A process that has unfinished work says so in the ledger at least each ALIVE, and its slice is charged by that. One
that is stopped says nothing while its work runs, and once it is killed no shim knows when that was. nvcd does: what
may have run from the last word to the end is charged here, and the slice waits until its cap has allowed that much.

Most programs that are stopped have nothing left on the device soon. So the times in which NVML saw nothing of the
process are not charged. A process may lie in the ledger: that is as if it had left the shim.

Where the ledger does not tell what a process said last, the process may have worked all the time: that is charged.
No shim asks nvcd for a device before its process has a slot.
"""

from __future__ import annotations

from collections import Counter, deque

from nvc.daemon.audit.accountant import cause_of
from nvc.daemon.audit.last_word import last_word, place_of
from nvc.daemon.audit.nvml_client import USE_PERIOD
from nvc.daemon.io.peer_exit import unwatch, watch_on
from nvc.daemon.schedule.unseen import MOST, owe
from nvc.slices.model import layout
from nvc.slices.model.ledger import LedgerError
from nvc.slices.store.process_info import ENDED, pid_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.daemon.audit.accountant import Accountant
    from nvc.daemon.io.clients import Client
    from nvc.daemon.io.loop import Loop
    from nvc.daemon.schedule.gang import Board

ALIVE = 25_000_000  # nanoseconds: ALIVE_NS of native/vgpu/budget.c
WAITING = 1024  # processes that outlive their connection and are waited for; those of one slice have 512 slots
AT_ONCE = 1_000_000_000  # nanoseconds from the end of a connection to that of its process, if it ends by that
TRIES = 8  # looks for the slot of a process: the first when it wants a device, the others half a second apart

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
        self._named: set[str] = set()  # slices that were logged

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
        if client.place is not None or client.tries >= TRIES:
            return
        client.tries += 1
        before = self.waiting.pop((client.peer.pid, client.peer.start), None)
        if before is not None:  # it has connected again
            unwatch(self.loop, before.living)
        try:
            inside = pid_inside(client.peer.pid)
            client.place = place_of(self.accountant.open_ledger(client.known), inside)
            client.lost = "" if client.place is not None else f"it has no entry of process {inside}"
        except (OSError, LedgerError) as error:
            if isinstance(error, OSError) and error.errno in ENDED:  # of the process, before it had a lease
                client.tries = TRIES
            else:
                client.lost = cause_of(error)

    def parted(self, client: Client, then: int) -> None:
        """The client's connection was closed then. Its process ends at that time, or later, or connects again."""
        name = client.peer.pid, client.peer.start
        if client.place is None and not client.lost or name in self.waiting:
            unwatch(self.loop, client.living)
            return
        if len(self.waiting) >= WAITING:
            self._make_room(then)
        client.left = then
        self.waiting[name] = client
        watch_on(self.loop, client.living, lambda now: self._ended(name, now))

    def _make_room(self, now: int) -> None:
        """No longer wait for one process, the oldest of those of the slice with the most: as if it ended now."""
        most = Counter(one.known.entry.key for one in self.waiting.values()).most_common(1)[0][0]
        name = next(name for name, one in self.waiting.items() if one.known.entry.key == most)
        cause = f"{WAITING} processes without a connection are waited for already"
        hint = "its slice pays for the time up to now; end processes that live on without a connection"
        self._log(self.waiting[name], "wait for its end", cause, hint)
        self._ended(name, now)

    def _ended(self, name: Name, now: int) -> None:
        client = self.waiting.pop(name)
        unwatch(self.loop, client.living)
        known, lost = client.known, client.lost
        key = known.entry.key
        if self.accountant.slices.by_key.get(key) is not known:
            return
        spans: list[tuple[int, bool] | None] = []
        if client.place is not None:
            try:
                fd = self.accountant.open_ledger(known)
                spans = [self._silent(client, fd, position, now) for position in range(len(known.uuids))]
            except (OSError, LedgerError) as error:
                lost = cause_of(error)
        if lost:
            spans = [(max(client.since, now - MOST), False)] * len(known.uuids)
            hint = "its slice pays as if it had worked all the time; end what changes that file in the container"
            self._log(client, "read what it said last", lost, hint)
        for uuid, device, span in zip(known.uuids, known.devices, spans):
            arbiter = self.board.arbiters.get(uuid)
            if arbiter is not None and span is not None:
                since, doubted = span
                owe(arbiter, key, self._unseen(name, device.uuid.lower(), since, now, doubted), now)

    def _silent(self, client: Client, fd: int, position: int, now: int) -> tuple[int, bool] | None:
        """Since when it said nothing, if its work may have run on then; and whether that is doubted.

        Raises OSError, LedgerError.
        """
        assert client.place is not None
        word = last_word(fd, client.place, position)
        since = word.seen + self.ahead
        # What another one has cleared up long ago was finished: the process went on.
        doubted = word.unfinished is None and now - client.left < AT_ONCE
        silent = client.since <= since < now - ALIVE and (word.unfinished or doubted)
        return (since, doubted) if silent else None

    def _log(self, client: Client, step: str, cause: str, hint: str) -> None:
        """Once for each slice."""
        entry = client.known.entry
        if entry.key not in self._named:
            self._named = {entry.key, *(self._named & self.accountant.slices.by_key.keys())}
            path = f"{entry.libs_dir}/{layout.LEDGER_DIRECTORY}/{layout.LEDGER_NAME}"
            problem = LedgerError(step, path, cause, hint)
            self.accountant.log(f"slice {entry.key}: process {client.peer.pid}: {problem}")

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
