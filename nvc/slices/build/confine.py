"""What a process that runs somebody else's code is bound to. By python-prctl, or by the system call where the
host's Python lacks it: there are no wheels of it, so a bundle has it for one version only."""

from __future__ import annotations

import os
import signal

from nvc.kernel import process_control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Numbers of include/uapi/linux/prctl.h.
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
NOBODY = 65534


def _load() -> Any:
    try:
        import prctl  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    return prctl


#: Loaded now: nothing is to be imported in a process that has changed its root directory.
PRCTL = _load()


def die_with(parent: int) -> None:
    """End this process when its parent ends; at once where `parent` is not its parent any more.

    A change of ids forgets that (prctl(2)): to be called again after one.
    """
    if PRCTL is not None:
        PRCTL.set_pdeathsig(signal.SIGKILL)
    else:
        process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def become_nobody(root: str, parent: int) -> None:
    """Give up every right, in the directory `root`, before the vendor's code is loaded; end with `parent`."""
    if root != "/":
        os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    no_new_privileges()
    die_with(parent)


def no_new_privileges() -> None:
    """No program that this process executes gains rights: a set-user-id one could take mounts away."""
    if PRCTL is not None:
        PRCTL.set_no_new_privs(1)
    else:
        process_control(PR_SET_NO_NEW_PRIVS, 1)
