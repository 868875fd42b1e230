"""Pid namespaces, as the tracer's program knows them."""

from __future__ import annotations

import os

from nvc.base.value import Value

#: /proc/self/ns/pid of the host: PROC_PID_INIT_INO of linux/proc_ns.h.
HOST_PIDS = "pid:[4026531836]"


class Space(Value):
    """A pid namespace in which a slice has processes: nsfs's device and inode, the number of the slice."""

    device: int
    inode: int
    number: int = 0  # 0: not known


def pid_space(pid: int, proc: str = "/proc") -> tuple[int, int] | None:
    """The pid namespace of a process, by nsfs's device and inode; None: it is the host's, or the process is over.

    Raises OSError.
    """
    try:
        status = os.stat(f"{proc}/{pid}/ns/pid")
        if os.readlink(f"{proc}/{pid}/ns/pid") == HOST_PIDS:
            return None
    except (FileNotFoundError, ProcessLookupError):
        return None
    return os.minor(status.st_dev), status.st_ino  # the kernel's own form: the device has no major number
