"""Processes of nvcd's own that do what may hang, or need a right that the daemon gives up."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

from nvc.base.program import show_as
from nvc.daemon.io.loop import Loop
from nvc.kernel import Kernel, process_control
from nvc.slices.make.confine import die_with, no_new_privileges

PR_SET_DUMPABLE = 4  # prctl(2)
OBEYED = (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE)


def start(
    kind: int, work: Callable[[socket.socket, int], None], name: str, keep: tuple[int, ...] = ()
) -> tuple[int, socket.socket]:
    """Fork a process called `name` for `work`.

    `work` is given its end of a pair of sockets of that kind and the daemon's number. The process has the standard
    streams, its socket and the descriptors `keep` open, and nothing else. Its number is returned, and the other
    end. Before `work` loads what others wrote, it calls `confined` here, or `become_nobody` of confine.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    parent = os.getpid()
    pid = fork()
    if pid == 0:
        try:
            low = 3
            for fd in sorted(fd for fd in {theirs.fileno(), *keep} if fd >= low):
                os.closerange(low, fd)
                low = fd + 1
            os.closerange(low, os.sysconf("SC_OPEN_MAX"))
            show_as(name, [])
            work(theirs, parent)
        finally:
            os._exit(1)
    theirs.close()
    ours.setblocking(False)
    return pid, ours


def end(loop: Loop, pid: int, channel: socket.socket) -> None:
    """Kill a process of ours that nobody has reaped: nobody else has its number."""
    loop.remove(channel.fileno())
    channel.close()
    os.kill(pid, signal.SIGKILL)


def confined(kernel: Kernel, rights: int, parent: int = 0) -> None:
    """Keep of this process's rights at most these, for good. 0: it does not end with its parent. Raises OSError.

    Nor can a container's root that has these rights, too, reach the host by its /proc/PID, with the host's pids.
    """
    process_control(PR_SET_DUMPABLE, 0)
    os.chdir("/")
    keep = rights & kernel.capget()[1]
    kernel.capbset_keep(keep)
    kernel.capset(keep)
    no_new_privileges()
    if parent:
        die_with(parent)


def fork() -> int:
    """Fork, with the default action for signals in the child: returns 0 there, the child's number here.

    Signals are blocked meanwhile. One that came to the child first would be written into the pipe that both
    have then, and end the daemon. Raises OSError.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OBEYED)
    try:
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in OBEYED:
                signal.signal(number, signal.SIG_DFL)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
