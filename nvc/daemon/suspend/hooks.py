"""Tells programs of slices that these are about to be suspended, or run again, as the slices' hooks say.

Who is not told, or does not answer, is suspended all the same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from nvc.base.files import closing
from nvc.daemon.io.loop import SECOND, Loop, received
from nvc.daemon.suspend.teller import LIMIT, PACKET
from nvc.kernel import Kernel
from nvc.model.slices.hook import hook_of
from nvc.slices.store.process_info import is_here

#: Who gets a signal does not say when it has done what it does.
SIGNAL_TIME = 2 * SECOND
_LATE = (LIMIT + 1) * SECOND
_CAUGHT = b"SigCgt:"

Then = Callable[[str, int], None]  # why it failed, "" if it did not, and when
Processes = tuple[tuple[int, int], ...]  # number and start time of each


@dataclass(eq=False)
class Going:
    """A slice that is being told."""

    number: str
    leave: bool
    then: Then


class Hooks:
    """All slices that are being told. `begin` starts the process that makes requests."""

    def __init__(self, loop: Loop, kernel: Kernel) -> None:
        self.loop, self.kernel = loop, kernel
        self.going: dict[str, Going] = {}
        self._channel: socket.socket | None = None
        self._number = 0

    def begin(self, channel: socket.socket) -> None:
        """Use this socket to the process of teller.py."""
        self._channel = channel
        self.loop.add(channel.fileno(), self._ready)

    def tell(self, key: str, text: str, leave: bool, processes: Processes, then: Then, now: int) -> bool:
        """Begin to tell a slice's processes by its hook `text`, then call `then`. False: there is none."""
        hook = hook_of(text)
        if hook is None or not processes:
            return False
        self._number += 1
        number, (pid, start) = str(self._number), processes[0]
        if hook.signal:
            told = [self._signal(*one, hook.signal) for one in processes]
            cause, due = ("" if any(told) else "no process has a handler for it"), now + SIGNAL_TIME
        elif self._send(f"{number} {pid} {start} {hook.port} {hook.path}"):
            cause, due = f"no answer within {LIMIT} s", now + _LATE
        else:
            cause, due = "the process that makes requests takes none", 0
        self.going[key] = Going(number, leave, then)
        self.loop.once(due, lambda now: self._end(number, cause, now))
        return True

    def _send(self, packet: str) -> bool:
        try:
            return self._channel is not None and self._channel.send(packet.encode("ascii")) > 0
        except OSError:
            return False

    def _end(self, number: str, cause: str, now: int) -> None:
        for key, one in list(self.going.items()):
            if one.number == number:
                del self.going[key]
                one.then(cause, now)

    def _ready(self, now: int) -> None:
        assert self._channel is not None
        said = received(self._channel, PACKET)
        if said is None:
            return
        number, _, cause = said.decode("ascii", "replace").partition(" ")
        if not number:
            self.loop.remove(self._channel.fileno())
            self._channel.close()
            self._channel = None
            return
        self._end(number, cause, now)

    def _signal(self, pid: int, start: int, number: int) -> bool:
        """Whether a process was sent a signal: without a handler it would be ended by it."""
        try:
            with closing(self.kernel.pidfd_open(pid)) as process:
                if not is_here(pid, start) or not handles(f"/proc/{pid}/status", number):
                    return False
                self.kernel.pidfd_send_signal(process, number)
        except OSError:
            return False
        return True


def handles(status: str, number: int) -> bool:
    """Whether the process with that file in /proc has a handler for a signal. Raises OSError."""
    with open(status, "rb") as file:
        caught = next((line.split()[1] for line in file if line.startswith(_CAUGHT)), b"0")
    return bool(int(caught, 16) >> number - 1 & 1)
