"""The timekeeper carries out the plan, in a process of its own: a call of the driver may hang.

It is the guardian, too: when nvcd's end of the socket closes, it goes on until the shims keep time themselves,
starts all that it stopped, and ends. What nvcd's plan does not stop is started first, in case an earlier timekeeper
was killed.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from socket import MSG_DONTWAIT
from typing import Any

from nvc.base.errors import NvcError, one_line
from nvc.base.value import Value
from nvc.daemon.keeper import wire
from nvc.daemon.keeper.device import ACCOUNT, CALM, SECOND, DeviceKeeper, DeviceTime
from nvc.daemon.keeper.driver import RmDriver
from nvc.daemon.keeper.plan import DevicePlan, Plan, phases
from nvc.model.slices.layout import KEPT_FOR

TELL = CALM  # nanoseconds between two accounts; ACCOUNT, if nvcd may have to act on one
TELL_TURNS = 200_000_000  # while slices take turns: nvcd plans by what they had in LATELY
AGAIN = SECOND  # until a device that could not be opened is tried again
TRACED = 65536  # records of the log that are kept for a trace
PACKET_MAX = 1 << 17
LATE = 50_000_000  # nanoseconds until a shim knows that nobody keeps time, and until an account was written
REST = SECOND  # without a device there is nothing to do but to listen


class _Closed(Value):
    """A device that could not be opened."""

    plan: DevicePlan
    problem: str
    again: int


class Keeper:
    """All devices. Time is passed in; `clock` tells it again after calls that take long."""

    def __init__(
        self, make: Callable[[], RmDriver], clock: Callable[[], int], alive: Callable[[int], bool]
    ) -> None:
        """`make` opens the driver, once there is a device to keep; it raises RmError, and is called again."""
        self.make = make
        self.driver: RmDriver | None = None
        self.clock = clock
        self.alive = alive
        self.began = clock()
        self.planned = False
        self.devices: dict[str, DeviceKeeper] = {}
        self.closed: dict[str, _Closed] = {}
        self.trace: deque[tuple[str, int, int, int]] = deque(maxlen=TRACED)
        self.phases: dict[str, int] = {}  # of caps

    def apply(self, plan: Plan) -> None:
        """Take a whole plan."""
        self.planned = True
        self.phases = phases(plan)
        named = {one.uuid for one in plan.devices}
        for uuid in [uuid for uuid in self.devices if uuid not in named]:
            self.devices.pop(uuid).close()
        self.closed = {uuid: one for uuid, one in self.closed.items() if uuid in named}
        for one in plan.devices:
            known = self.devices.get(one.uuid)
            if known is not None:
                known.apply(one, self.phases)
            elif one.uuid in self.closed:
                self.closed[one.uuid] = self.closed[one.uuid].replace(plan=one)
            else:
                self.closed[one.uuid] = _Closed(one, "it is not opened yet", self.clock())

    def _open(self, plan: DevicePlan, now: int) -> None:
        try:
            if self.driver is None:
                self.driver = self.make()
            device = DeviceKeeper(plan, self.driver, self.clock, self.alive, self.trace)
        except (OSError, NvcError) as error:
            self.closed[plan.uuid] = _Closed(plan, one_line(error), now + AGAIN)
            return
        self.closed.pop(plan.uuid, None)
        self.devices[plan.uuid] = device
        device.apply(plan, self.phases)

    def step(self, now: int) -> int:
        """Do what is due. Returns when something is due again, nanoseconds of CLOCK_MONOTONIC."""
        following = now + REST
        for one in self.closed.values():
            if now >= one.again:  # one in a step: it is tried out, which takes long
                self._open(one.plan, now)
                now = self.clock()
                break
        for one in self.closed.values():
            following = min(following, one.again)
        for device in self.devices.values():
            following = min(following, device.step(now))
            now = self.clock()
        return following

    def account(self, processor: int) -> wire.Account:
        """What became of the time until now."""
        closed = tuple(
            DeviceTime(uuid, -1, False, (), (), 0, 0, 0, (), one.problem)
            for uuid, one in self.closed.items()
        )
        found = tuple(device.report() for device in self.devices.values())
        return wire.Account(self.began, self.clock(), processor, (*found, *closed))

    @property
    def is_odd(self) -> bool:
        """Whether nvcd may have to act on what a process had of some device."""
        return any(device.is_odd for device in self.devices.values())

    @property
    def has_turns(self) -> bool:
        """Whether slices take turns on some device."""
        return any(known.plan.in_turn for device in self.devices.values() for known in device.slices.values())

    def records(self, seconds: int) -> list[tuple[str, int, int, int]]:
        """The records of the last seconds, the oldest first."""
        since = {uuid: device.accounts.now - seconds * SECOND for uuid, device in self.devices.items()}
        return [one for one in self.trace if one[1] >= since.get(one[0], 0)]

    def let_go(self) -> None:
        """Start all there is: nvcd has ended, and a timekeeper that was killed too. Raises OSError, NvcError."""
        (self.driver or self.make()).let_go()

    def close(self) -> None:
        """Start all that was stopped."""
        for device in self.devices.values():
            device.close()


class Service:
    """Serves nvcd's end of a socket."""

    def __init__(
        self, channel: socket.socket, keeper: Keeper, clock: Callable[[], int],
        beat: Callable[[], None] = lambda: None, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """`beat` is called in each turn."""
        self.channel = channel
        self.keeper = keeper
        self.clock = clock
        self.beat = beat
        self.sleep = sleep
        self.assembler = wire.Assembler()
        self.sent = 0
        self.due = self.wake = clock()  # when something is to be done on devices, and at all
        self.told = clock()
        self.outbox: deque[bytes] = deque()

    def run(self) -> None:
        """Until nvcd's end closes."""
        self.send({"began": os.getpid()})
        try:
            while self.turn():
                pass
            if self.keeper.planned:
                self.outlast()
            else:
                self.keeper.let_go()
        finally:
            self.keeper.close()

    def outlast(self) -> None:
        """Go on by the last plan for as long as the shims believe that nvcd keeps time."""
        end = self.told + KEPT_FOR + LATE
        while self.keeper.devices and (now := self.clock()) < end:
            self.beat()
            due = min(self.keeper.step(now), end)
            self.sleep(max(due - self.clock(), 0) / SECOND)

    def turn(self) -> bool:
        """Wait for what comes first, and do it. False: nvcd's end has closed."""
        self.beat()
        left = (self.wake - self.clock()) / SECOND
        full = [self.channel] if self.outbox else []
        readable, writable, _ = select.select([self.channel], full, [], max(left, 0))
        if writable:
            self._flush()
        if readable:
            try:
                packet = self.channel.recv(PACKET_MAX, MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                packet = None
            except OSError:
                packet = b""
            if packet == b"":
                return False
            if packet is not None:
                self._take(packet)
                self.due = self.clock()
        now = self.clock()
        if now >= self.due:
            self.due = self.keeper.step(now)
        telling = self.telling
        if now >= telling:
            self.told = now
            if not self.outbox:  # while nvcd takes nothing, accounts are left out: the next one tells all
                self.send(wire.account_message(self.keeper.account(time.process_time_ns())))
            telling = self.telling
        self.wake = min(self.due, telling)
        return True

    @property
    def telling(self) -> int:
        """When the next account is due."""
        if self.keeper.is_odd:
            return self.told + ACCOUNT
        return self.told + (TELL_TURNS if self.keeper.has_turns else TELL)

    def _take(self, packet: bytes) -> None:
        try:
            message = self.assembler.take(packet)
            if message is None:
                return
            if "plan" in message:
                self.keeper.apply(wire.read_plan(message["plan"]))
            elif "trace" in message:
                seconds = message["trace"]
                if type(seconds) is not int or not 0 < seconds <= 3600:
                    raise wire.WireError("trace: not a number of seconds")
                self.send({"trace": self.keeper.records(seconds)})
            else:
                raise wire.WireError("a message of an unknown kind")
        except wire.WireError as error:
            self.send({"problem": f"not understood by the timekeeper: {one_line(error)}"})

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, without waiting; in place of one that is too long, say so."""
        self.sent += 1
        try:
            self.outbox.extend(wire.packets(message, self.sent))
        except wire.WireError as error:
            problem = f"the timekeeper cannot tell its {'and '.join(message)}: {error}"
            self.outbox.extend(wire.packets({"problem": problem}, self.sent))
        self._flush()

    def _flush(self) -> None:
        try:
            while self.outbox:
                self.channel.send(self.outbox[0], MSG_DONTWAIT)
                self.outbox.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.outbox.clear()  # it has closed: the next read says so


def alive(pid: int) -> bool:
    """Whether a process is there."""
    return os.path.exists(f"/proc/{pid}")
