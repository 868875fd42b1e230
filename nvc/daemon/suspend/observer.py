"""Looks at what threads of slices wait for, in a process of its own.

A tenant chooses how its processes look in /proc: their number, the names of mapped files, and whether a read of
their memory ever returns (a page of a FUSE file). So the process that looks may end or hang, and nvcd does not.
Where one slice takes longer than PATIENCE it is killed, and the slice is looked at again after AGAIN: a read of a
FUSE file may not end with it, so there may be HANG_MAX of them that cannot die.

From nvcd it gets packets of process numbers; it answers WANTED, QUIET, or why it cannot tell.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from nvc.base.errors import one_line
from nvc.daemon.io import helper
from nvc.daemon.io.loop import SECOND, Loop, received
from nvc.daemon.suspend.threads import Threads
from nvc.kernel import Kernel, privileges

NAME = "nvcd-idle"
RIGHTS = privileges.mask(privileges.SYS_PTRACE)
WANTED, QUIET = "wanted", "quiet"
PATIENCE = 2 * SECOND
AGAIN = 60 * SECOND
HANG_MAX = 8
PACKET = 1 << 16
PIDS_MAX = 4096
_SAID_MAX = 400

#: The processes of a slice, and whether it is suspended: it is looked at again, then.
Subject = tuple[tuple[int, ...], bool]


def start(kernel: Kernel) -> tuple[int, socket.socket]:
    """The process's number, and the socket to it. Raises OSError."""

    def run(channel: socket.socket, parent: int) -> None:
        threads = Threads()
        helper.confined(kernel, RIGHTS, parent)
        channel.setblocking(True)
        while packet := channel.recv(PACKET):
            channel.sendall(seen(threads, map(int, packet.split())).encode("ascii", "replace")[:_SAID_MAX])
        os._exit(0)

    return helper.start(socket.SOCK_SEQPACKET, run, NAME)


def seen(threads: Threads, pids: Iterable[int]) -> str:
    """What the threads of a slice's processes are at: WANTED, QUIET, or why that cannot be told."""
    try:
        found = [threads.wait_for_driver(pid) for pid in pids]  # all of them: one may not be looked at
        return WANTED if any(found) else QUIET
    except OSError as error:
        return f"{error.filename or '/proc'}: the threads of its processes cannot be watched: {error.strerror}"
    except Exception as error:  # whatever a tenant has made of what is read here
        return f"what its threads are at is not understood: {one_line(error)}"


class Question(NamedTuple):
    """About one slice."""

    key: str
    subject: Subject


class Observer:
    """Keeps the last answer about each slice."""

    def __init__(self, loop: Loop, begin: Callable[[], tuple[int, socket.socket]]) -> None:
        """`begin` starts the process that looks, as `start`; it raises OSError."""
        self.loop, self.begin = loop, begin
        self._answers: dict[str, tuple[Subject, str]] = {}
        self._left_alone: dict[str, int] = {}  # slices that were not looked at in time, until when
        self._queue: list[Question] = []
        self._asked: Question | None = None
        self._pid = 0
        self._channel: socket.socket | None = None
        self._unreaped: list[int] = []

    def look(self, slices: Mapping[str, Subject], now: int) -> None:
        """Look at these slices, by key. A slice that could not be looked at is left alone."""
        self._unreaped = [pid for pid in self._unreaped if os.waitpid(pid, os.WNOHANG)[0] == 0]
        self._left_alone = {key: until for key, until in self._left_alone.items() if key in slices and now < until}
        alone = self._left_alone
        self._answers = {
            key: found for key, found in self._answers.items() if key in alone or slices.get(key) == found[0]
        }
        before = [each for each in self._queue if slices.get(each.key) == each.subject]
        known = {each.key for each in before} | ({self._asked.key} if self._asked else set())
        due = [
            Question(key, subject) for key, subject in slices.items()
            if key not in known and key not in alone
            and (key not in self._answers or subject[1] and self.answer(key) in (WANTED, QUIET))
        ]  # fmt: skip
        self._queue = before + due
        self._next(now)

    def answer(self, key: str) -> str:
        """WANTED, QUIET, or why that cannot be told; "": nobody has looked yet."""
        return self._answers[key][1] if key in self._answers else ""

    def _next(self, now: int) -> None:
        while self._asked is None and self._queue:
            self._ask(self._queue.pop(0), now)

    def _ask(self, question: Question, now: int) -> None:
        self._asked = question
        if len(question.subject[0]) > PIDS_MAX:
            self._answered("it has too many processes to be watched")
            return
        if len(self._unreaped) >= HANG_MAX:
            self._answered(f"{HANG_MAX} processes that looked at threads hang, and cannot be ended")
            return
        try:
            if self._channel is None:
                self._pid, self._channel = self.begin()
                self.loop.add(self._channel.fileno(), self._ready)
            self._channel.send(" ".join(map(str, question.subject[0])).encode() or b" ")
        except OSError as error:
            self._end(f"its threads cannot be watched: {error.strerror}")
            return
        self.loop.once(now + PATIENCE, lambda now: self._late(question, now))

    def _late(self, question: Question, now: int) -> None:
        if self._asked is question:
            self._left_alone[question.key] = now + AGAIN
            self._end(f"its threads could not be looked at within {PATIENCE // SECOND} s")
            self._next(now)

    def _ready(self, now: int) -> None:
        assert self._channel is not None
        said = received(self._channel, PACKET)
        if said is None:
            return
        if said:
            self._answered(said.decode("ascii", "replace"))
        else:
            self._end("the process that looked at its threads has ended")
        self._next(now)

    def _answered(self, said: str) -> None:
        if self._asked is not None:
            self._answers[self._asked.key] = self._asked.subject, said
            self._asked = None

    def _end(self, cause: str) -> None:
        """End the process that looks, if there is one, and say that of the slice it was at."""
        if self._channel is not None:
            helper.end(self.loop, self._pid, self._channel)
            self._channel = None
            self._unreaped.append(self._pid)
        self._answered(cause)
