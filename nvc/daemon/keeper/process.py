"""The timekeeper's two processes, both named `nvcd-time`, with only the rights that they need.

The first is forked by nvcd while nvcd still has those rights. It forks the second, which keeps time, and another
one whenever that has ended or hangs: nvcd could not give it the rights any more.
"""

from __future__ import annotations

import gc
import mmap
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable

from nvc.base.files import closing
from nvc.daemon.io import helper
from nvc.daemon.keeper.driver import RmDriver
from nvc.daemon.keeper.keeper import Keeper, Service, alive
from nvc.kernel import Kernel, privileges, process_control

NAME = "nvcd-time"
#: The driver tells administrators whose context was on the GPU; pidfd_getfd(2) borrows a tenant's descriptor. The
#: others are nvcd's own: the driver is found and tried out here, by processes that give all rights up.
RIGHTS = privileges.PERMITTED["nvcd"] | privileges.mask(privileges.SYS_ADMIN)
PR_SET_TIMERSLACK = 29
RESTART, RESTART_MAX = 0.1, 30.0  # seconds until another one is started: at first, and at most
SOUND = 60.0  # seconds after which a failure counts as the first again
LAST = 8  # times that one is started once nvcd's end has closed, if each fails: in half a minute
LOOK = 5000  # milliseconds between two looks at whether it hangs
SOON = 0.25  # seconds between two looks at whether nvcd's end has closed
HUNG = 60_000_000_000  # nanoseconds in which it did nothing: a GPU that is tried out takes some
PRIORITY = -15  # a quota that ends is late by as long as this process waits for a processor


def start(kernel: Kernel, make: Callable[[], RmDriver]) -> tuple[int, socket.socket]:
    """The first process's number, and the socket to the second. `make` opens the driver there. Raises OSError."""

    def work(channel: socket.socket, parent: int) -> None:
        _confine(kernel)
        supervise(channel, lambda beat: _keep(channel, make, beat))
        os._exit(0)

    return helper.start(socket.SOCK_SEQPACKET, work, NAME)


def _keep(channel: socket.socket, make: Callable[[], RmDriver], beat: Callable[[], None]) -> None:
    keeper = Keeper(make, time.monotonic_ns, alive)
    Service(channel, keeper, time.monotonic_ns, beat).run()


def supervise(channel: socket.socket, work: Callable[[Callable[[], None]], None]) -> None:
    """Run `work` in a process, and again whenever that ends before nvcd's end of the socket closes.

    `work` is handed a function to call each time that it does something: it is killed when it does not for long.
    """
    shared = mmap.mmap(-1, 8)
    waiting, last, gone = RESTART, LAST, False
    while last:
        begun = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                work(lambda: _beat(shared))
                os._exit(0)
            except BaseException:
                traceback.print_exc()  # nvcd's log has it, and the next one goes on
            finally:
                os._exit(1)
        if _watched(pid, shared) == 0:
            return
        if time.monotonic() - begun > SOUND:
            waiting = RESTART
        last -= gone
        end = time.monotonic() + waiting
        waiting = min(2 * waiting, RESTART_MAX)
        while (left := end - time.monotonic()) > 0 and (gone or not _closed(channel)):
            time.sleep(min(left, SOON))
        if not gone and _closed(channel):  # what the one that ended has stopped is started by the next, at once
            gone, waiting = True, RESTART


def _beat(shared: mmap.mmap) -> None:
    shared[:8] = time.monotonic_ns().to_bytes(8, "little")


def _watched(pid: int, shared: mmap.mmap) -> int:
    """The status with which a process ended, which is killed if it hangs."""
    _beat(shared)
    poll = select.poll()
    with closing(os.pidfd_open(pid)) as fd:
        poll.register(fd, select.POLLIN)
        while not poll.poll(LOOK):
            if time.monotonic_ns() - int.from_bytes(shared[:8], "little") > HUNG:
                os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _closed(channel: socket.socket) -> bool:
    poll = select.poll()
    poll.register(channel, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _confine(kernel: Kernel) -> None:
    """Give up what is not needed.

    It ends when nvcd's end of the socket closes, and not by a signal, which reaches a whole service: what it
    stopped is to be started first.
    """
    for number in helper.OBEYED:
        signal.signal(number, signal.SIG_IGN)
    process_control(PR_SET_TIMERSLACK, 1)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    except OSError:
        pass  # without the right it is late on a busy host, and repays that
    helper.confined(kernel, RIGHTS)
    gc.freeze()
