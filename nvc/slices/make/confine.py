"""Confines processes that run foreign code: no rights, no new privileges, an end with their parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from nvc.kernel import process_control

# Numbers of include/uapi/linux/prctl.h.
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
NOBODY = 65534


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends; end at once if `parent` is no longer its parent.

    A change of ids clears this (prctl(2)): call it again after one.
    """
    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def become_nobody(root: str, parent: int) -> None:
    """Chroot to `root`, become nobody, and end with `parent`: call this before loading the vendor's code."""
    if root != "/":
        os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    no_new_privileges()
    die_with(parent)


def fork_nobody(work: Callable[[], None], root: str, *close: int) -> int:
    """Run `work` in a process without rights, chrooted to `root`; returns its number."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        for fd in close:
            os.close(fd)
        become_nobody(root, parent)
        work()
    finally:
        os._exit(1)


def no_new_privileges() -> None:
    """Forbid set-user-id programs to gain rights: one could unmount the shim."""
    process_control(PR_SET_NO_NEW_PRIVS, 1)
