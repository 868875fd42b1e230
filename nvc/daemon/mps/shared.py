"""The MPS servers that slices share under the policy `concurrent`: started where they are used, and watched.

A control daemon starts its server (nvidia-cuda-mps-server) for the first client, and another one after that has
ended. A server ends all its clients when one of them causes a fault, and takes no others until all have ended. So
nvcd ends such a server; the next client gets a new one. nvcd starts a control daemon again that has ended or does
not answer.

Without clients there is no server, and nothing is asked.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TypeAlias

from nvc.base.errors import DeviceError
from nvc.daemon.io.identity import signal_process
from nvc.daemon.io.loop import SECOND
from nvc.daemon.mps.answers import culprit, server_status, size_of
from nvc.daemon.mps.records import SHARED, MpsServer
from nvc.daemon.mps.servers import FAILED, READY, REMEMBERED, Servers
from nvc.daemon.schedule.slice_index import SliceIndex
from nvc.kernel.processes import namespace_number, start_of

Tell: TypeAlias = Callable[[str, str, int, str, str], None]

SILENT = SECOND  # without an answer: the log says so
#: A busy host may take seconds to start the program that asks, and to end a server ends all of its clients. So one
#: question without an answer is asked again, and only then counts.
AGAIN = 5 * SECOND
WEDGED = 10 * SECOND
NEXT = "the next program starts another one"
UNUSED = 5 * SECOND  # a slice that is being made may not be known yet


class Watched:
    """What is known of a shared control daemon."""

    __slots__ = ("used", "server", "start", "clients", "asked", "silent", "said", "restarts")

    def __init__(self, now: int) -> None:
        self.used = now  # when a slice that uses it was last seen
        self.server = 0  # its server's process; 0: none
        self.start = 0  # of that process
        self.clients: dict[int, str] = {}  # processes of that server, and the keys of their slices
        self.asked = 0  # when the question was asked that is not answered; 0: there is none
        self.silent = 0  # when it was first asked since the last answer
        self.said = False
        self.restarts = 0  # of servers that had clients, and of the control daemon


class SharedServers:
    """All of them, by the UUID of their device."""

    def __init__(self, servers: Servers, slices: SliceIndex, tell: Tell) -> None:
        self.servers = servers
        self.slices = slices
        self.tell = tell
        self.watched: dict[str, Watched] = {}

    def start(self, uuid: str, mode: int, now: int) -> MpsServer:
        """Start one, or tell about the one that was started. Raises DeviceError."""
        self.watched.setdefault(uuid, Watched(now)).used = now
        return self.servers.start(SHARED, uuid, 100, 0, mode, now)

    def second(self, modes: dict[str, int], now: int) -> None:
        """Start what slices need and does not run, and end what none does. `modes`: of devices, in lower case."""
        used = {entry.server for entry in self.slices.living() if entry.server}
        for uuid in used:
            watched = self.watched.setdefault(uuid, Watched(now))
            watched.used = now
            one = self.servers.servers.get((SHARED, uuid))
            if one is None or one.state == FAILED and now - one.since > REMEMBERED:
                self._again(uuid, modes.get(uuid.lower(), 0), now)
        for one in self._shared():
            watched = self.watched.setdefault(one.uuid, Watched(now))
            if one.uuid not in used and now - watched.used > UNUSED:
                self.servers.stop_one(one)
        running = {one.uuid for one in self._shared()}
        for uuid in self.watched.keys() - used - running:  # also where none could be started
            del self.watched[uuid]

    def _again(self, uuid: str, mode: int, now: int) -> None:
        try:
            self.servers.start(SHARED, uuid, 100, 0, mode, now)
            self.watched[uuid].restarts += 1
        except DeviceError as error:
            self.slices.say(f"MPS of {uuid} is not started again: {error}")

    def half(self, now: int) -> None:
        """Look at those that run."""
        for one in self._shared():
            if one.state == READY and one.pid:
                self._look(one, self.watched.setdefault(one.uuid, Watched(now)), now)

    def _shared(self) -> list[MpsServer]:
        return [one for one in self.servers.servers.values() if one.shared]

    def _look(self, one: MpsServer, watched: Watched, now: int) -> None:
        children = _children(one.pid)
        if watched.server and watched.server not in children:
            self._ended(one, watched, "the server has ended", NEXT)
        if not watched.server and children:
            watched.server = children[-1]
            watched.start = start_of(f"/proc/{watched.server}")
            one.seen = size_of(one.log)
        if watched.asked:
            self._wait(one, watched, now)
        elif watched.server:
            watched.asked = now
            watched.silent = watched.silent or now
            question = f"get_server_status {watched.server}\nget_client_list {watched.server}\n"
            try:
                self.servers.ask(one, question.encode(), lambda text, now: self._answered(one, watched, text))
            except OSError as error:
                watched.asked = 0
                self.slices.say(f"MPS of {one.uuid}: cannot be asked: {error.strerror}")

    def _wait(self, one: MpsServer, watched: Watched, now: int) -> None:
        """There is no answer yet."""
        if now - watched.silent > SILENT and not watched.said:
            watched.said = True
            self.servers.log(f"MPS of {one.uuid}: the control daemon does not answer")
        if now - watched.silent > WEDGED:
            self._kill(watched)
            self._ended(one, watched, "the control daemon has not answered for 10 s", "started again")
            self.servers.drop(one, signal.SIGKILL)  # the next second starts it
            watched.asked, watched.silent, watched.said = 0, 0, False
        elif now - watched.asked > AGAIN:
            self.servers.hush(one)

    def _answered(self, one: MpsServer, watched: Watched, text: str) -> None:
        watched.asked = 0
        status = server_status(text)
        if not status.state:  # the program that asks was ended
            return
        watched.silent, watched.said = 0, False
        watched.clients = {
            pid: watched.clients.get(pid) or self._slice_of(pid, one.uuid) for pid in status.clients
        } or ({} if status.state == "ACTIVE" else watched.clients)  # whom a server had that has ended
        if status.faulted:
            self._kill(watched)
            self._ended(one, watched, "a fault has ended all its programs", NEXT)

    def _kill(self, watched: Watched) -> None:
        if watched.server:
            try:
                signal_process(self.servers.kernel, watched.server, watched.start, signal.SIGKILL)
            except OSError as error:
                self.slices.say(f"MPS server {watched.server} goes on: {error.strerror}")

    def _ended(self, one: MpsServer, watched: Watched, what: str, action: str) -> None:
        """Tell whose fault it was, where the driver says so."""
        pid = culprit(one.log, one.seen, frozenset(watched.clients))
        key = watched.clients.get(pid, "")
        count = len(watched.clients)
        whose = "the driver names the process" if pid else "the driver does not say whose fault it was"
        if count or pid:
            watched.restarts += 1
            self.tell(key, one.uuid, pid or watched.server, f"{what}, with {count} clients: {whose}", action)
        watched.server, watched.clients, watched.silent = 0, {}, 0

    def _slice_of(self, pid: int, uuid: str) -> str:
        """The key of the slice in whose mount namespace a process is; "": none."""
        try:
            namespace = namespace_number(pid, "mnt")
        except OSError:
            return ""
        found = (entry for entry in self.slices.living() if entry.server == uuid)
        return next((entry.key for entry in found if entry.namespace == namespace), "")


def _children(pid: int) -> list[int]:
    """The processes that a process has started, of all its threads; none where it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
                found += map(int, children.read().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return sorted(found)
