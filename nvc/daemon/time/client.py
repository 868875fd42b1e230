"""nvcd's side of its timekeeper: starts it, sends it the plan, takes its accounts, and says why time is not kept.

A timekeeper that ends is started again by its first process (process.py), and says so: it is sent the plan then. If
that one has ended as well, nvcd starts both again, which have only nvcd's rights by then.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable

from nvc.base.errors import one_line
from nvc.daemon.io.loop import SECOND, Loop, received
from nvc.daemon.keeper import wire
from nvc.daemon.keeper.plan import Plan
from nvc.daemon.keeper.wire import Account

Answer = Callable[[tuple[tuple[str, int, int, int], ...], str], None]  # records, or why there are none

SOON = SECOND // 200  # between two plans: many changes at once are one
BACKOFF = (SECOND, 60 * SECOND)  # until it is started again: first, and most
UNKNOWN = "the timekeeper does not know the device"
SILENT = 2 * SECOND  # without an account: nobody keeps time, as far as nvcd knows
SOUND = 60 * SECOND  # after which a failure counts as the first again
PACKET_MAX = 1 << 17
Records = tuple[tuple[str, int, int, int], ...]


class TimeClient:
    """`begin` starts a timekeeper, `told` is called with each account and its time."""

    def __init__(
        self, loop: Loop, begin: Callable[[], tuple[int, socket.socket]], told: Callable[[Account, int], None],
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.loop = loop
        self.begin = begin
        self.told = told
        self.log = log
        self.plan = Plan()
        self.account: Account | None = None
        self.pid = self.keeper = self.restarts = 0  # the first process, the one that keeps time
        self.heard = 0  # when the last account came
        self._socket: socket.socket | None = None
        self._assembler = wire.Assembler()
        self._outbox: deque[bytes] = deque()
        self._sent: Plan | None = None
        self._number = 0
        self._not_before = self._since = 0
        self._backoff = BACKOFF[0]
        self._waiting = False
        self._failure = ""
        self._unreaped: list[int] = []
        self._asked: list[Answer] = []  # who waits for a trace
        self._question: bytes = b""

    def problem(self, now: int) -> str:
        """Why the timekeeper keeps no time on any device; "": it does. Of one device, its account says more."""
        if self._socket is None:
            return self._failure or "the timekeeper has not begun"
        if self.account is None or now - self.heard > SILENT:
            return "the timekeeper does not answer"
        return ""

    def holds(self, uuid: str, now: int) -> str:
        """Why time is not kept on this device by the driver; "": it is."""
        problem = self.problem(now)
        if problem or self.account is None:
            return problem
        found = [device for device in self.account.devices if device.uuid == uuid]
        return found[0].problem if found else UNKNOWN

    def set(self, plan: Plan, now: int) -> None:
        """This plan is to be carried out."""
        self.plan = plan
        self._flush(now)

    def second(self, now: int) -> None:
        """Start the timekeeper if there is none. Called once a second."""
        self._reap()
        if self._socket is None:
            if now >= self._not_before:
                self._begin(now)
        elif now - self._since > SOUND:
            self._backoff = BACKOFF[0]

    def trace(self, seconds: int, answer: Answer, now: int) -> bool:
        """Ask for the log of the last seconds; `answer` is called with it. False: there is no timekeeper to ask."""
        if self._socket is None:
            return False
        self._asked.append(answer)
        if len(self._asked) == 1:
            self._number += 1
            self._question = b"".join(wire.packets({"trace": seconds}, self._number))
            self._flush(now)
        return True

    def _begin(self, now: int) -> None:
        try:
            self.pid, self._socket = self.begin()
        except OSError as error:
            self._fail(str(error), now)
            return
        self._since, self._sent, self.account = now, None, None
        self._assembler = wire.Assembler()
        self._outbox.clear()
        self.loop.add(self._socket.fileno(), self._ready)
        self._flush(now)

    def _flush(self, now: int) -> None:
        """Send what is to be sent, as far as there is room."""
        if self._socket is None or self._waiting:
            return
        try:
            while True:
                if not self._outbox:
                    if self._question:
                        self._outbox.append(self._question)
                        self._question = b""
                    elif self._sent != self.plan:
                        self._number += 1
                        self._sent = self.plan
                        self._outbox.extend(wire.packets({"plan": self.plan}, self._number))
                    else:
                        return
                self._socket.send(self._outbox[0])
                self._outbox.popleft()
        except (BlockingIOError, InterruptedError):
            self._waiting = True
            self.loop.once(now + SOON, self._resume)
        except OSError:
            pass  # it has ended: the next read says so
        except wire.WireError as error:
            self._say(f"the plan is too long: {error}")

    def _resume(self, now: int) -> None:
        self._waiting = False
        self._flush(now)

    def _ready(self, now: int) -> None:
        assert self._socket is not None
        packet = received(self._socket, PACKET_MAX)
        if packet is None:
            return
        if not packet:
            self._fail("the timekeeper has ended", now)
            return
        try:
            message = self._assembler.take(packet)
            if message is None:
                return
            if "began" in message:
                if self.keeper:
                    self.restarts += 1
                    self._say("the timekeeper was started again")
                    self._answer((), "the timekeeper was started again")
                self.keeper = wire.read_pid(message["began"])
                self._sent = None
                self._outbox.clear()
                self._flush(now)
            elif "account" in message:
                self.account, self.heard = wire.read_account(message["account"]), now
                self._failure = ""
                self.told(self.account, now)
            elif "trace" in message:
                self._answer(wire.read_records(message["trace"]), "")
            else:
                problem = str(message.get("problem", "a message of an unknown kind"))
                self._say(problem)
                self._answer((), problem)
        except wire.WireError as error:
            self._fail(f"an answer that makes no sense: {error}", now)

    def _answer(self, records: Records, problem: str) -> None:
        asked, self._asked = self._asked, []
        self._question = b""
        for answer in asked:
            answer(records, problem)

    def _fail(self, problem: str, now: int) -> None:
        """There is no timekeeper now; another one is started later."""
        self.close()
        self.restarts += 1
        self._not_before = now + self._backoff
        self._say(f"{one_line(problem)}; started again in {self._backoff // SECOND} s")
        self._backoff = min(self._backoff * 2, BACKOFF[1])

    def _say(self, problem: str) -> None:
        problem = f"time: {one_line(problem)}"
        if problem != self._failure:
            self._failure = problem
            self.log(problem)

    def close(self) -> None:
        """Let the timekeeper end: it starts what it stopped, then."""
        self._answer((), "the timekeeper has ended")
        self.account, self.keeper = None, 0
        if self._socket is not None:
            self.loop.remove(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self.pid:
            self._unreaped.append(self.pid)
            self.pid = 0
        self._reap()

    def _reap(self) -> None:
        self._unreaped = [pid for pid in self._unreaped if os.waitpid(pid, os.WNOHANG)[0] == 0]
