"""The process that makes the calls for one slice: the vendor's library runs there, with the one right it needs.

It tells each step before it takes it, by a packet `STEP PID`, and the outcome by `end STATE CALL PID CODE`. nvcd
kills it where it hangs. What it had asked goes on in the tenant all the same, see calls.py.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable

from nvc.daemon.io import helper
from nvc.daemon.suspend.calls import IS_FAILED, Cuda, Driver, Lives, Outcome, Told, away, back
from nvc.daemon.suspend.hooks import Processes
from nvc.daemon.suspend.swap import Files, Swap, swapped_back
from nvc.daemon.suspend.threads import SEEN, Threads
from nvc.kernel import Kernel, privileges
from nvc.kernel.processes import start_of
from nvc.slices.make.calibrate import Libraries
from nvc.slices.store.process_info import ENDED

NAME = "nvcd-suspend"
RIGHTS = privileges.mask(privileges.SYS_PTRACE)
PACKET = 512

#: pidfd_open(2) of a number that nobody has, or that only a thread has now.
_ENDED = (*ENDED, errno.EINVAL)

Work = Callable[[Driver, tuple[int, ...], Told, Lives], Outcome]


class Held:
    """Processes, each by a descriptor of it: whoever has its number later is not taken for it."""

    def __init__(self, kernel: Kernel, processes: Processes) -> None:
        """Who has ended is left out. Raises OSError."""
        self._fds: dict[int, int] = {}
        for pid, begun in processes:
            try:
                fd = kernel.pidfd_open(pid)
                if start_of(f"/proc/{pid}") == begun:  # so it was the same when it was opened
                    self._fds[pid] = fd
                else:
                    os.close(fd)
            except OSError as error:
                if error.errno not in _ENDED:
                    raise
        self.pids = tuple(self._fds)

    def lives(self, pid: int) -> bool:
        """Whether a process has a thread that has not ended."""
        if pid not in self._fds:
            return False
        poll = select.poll()
        poll.register(self._fds[pid], select.POLLIN)
        return not poll.poll(0)


def start(
    kernel: Kernel, libraries: Libraries, processes: Processes, leave: bool, files: Files | None
) -> tuple[int, socket.socket]:
    """Take the memory of processes off their devices, or bring it back. The worker's number, and the socket to it.

    With `files` of the slice the processes do that, else the driver.

    Raises OSError.
    """

    def run(channel: socket.socket, parent: int) -> None:
        threads, held = Threads(), Held(kernel, processes)
        swap = Swap(files, held.pids, held.lives) if files is not None else None
        if libraries.root != "/":
            os.chroot(libraries.root)
        helper.confined(kernel, RIGHTS, parent)

        def leaves(driver: Driver, pids: tuple[int, ...], told: Told, lives: Lives) -> Outcome:
            time.sleep(SEEN)
            return away(driver, pids, told, threads.have_left, lives)

        def swaps(_: Driver, pids: tuple[int, ...], told: Told, lives: Lives) -> Outcome:
            assert swap is not None
            if leave:
                return away(swap, pids, told, lambda pid: True, lives)
            return swapped_back(swap, pids, told, lives)

        work: Work = swaps if swap is not None else leaves if leave else back
        _serve(channel, swap or libraries.cuda, held.pids, held.lives, work)
        os._exit(0)

    return helper.start(socket.SOCK_SEQPACKET, run, NAME, (files.quota, files.ledger) if files is not None else ())


def _serve(channel: socket.socket, library: str | Swap, pids: tuple[int, ...], lives: Lives, work: Work) -> None:
    channel.setblocking(True)
    try:
        driver: Driver = library if isinstance(library, Swap) else Cuda(library)
    except OSError as error:
        found = Outcome(IS_FAILED, f"load {error}"[: PACKET // 2].replace(" ", "_"))
    else:
        found = work(driver, pids, lambda step, pid: channel.sendall(f"{step} {pid}".encode()), lives)
    step = found.step.replace(" ", "_") or "-"
    channel.sendall(f"end {found.state} {step} {found.pid} {found.code}".encode("ascii", "replace"))


def parse(packet: bytes) -> tuple[str, int] | Outcome:
    """A step and its process, or the outcome. Raises ValueError: who sent it ran the vendor's code."""
    words = packet.decode("ascii").split(" ")
    if len(words) == 2:
        return words[0], int(words[1])
    kind, state, step, pid, code = words
    if kind != "end":
        raise ValueError(f"not understood: {packet[:80]!r}")
    return Outcome(state, "" if step == "-" else step.replace("_", " "), int(pid), int(code))
