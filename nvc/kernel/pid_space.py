"""Pid namespaces, as the tracer's program knows them."""

from __future__ import annotations

import os

from nvc.base.files import closing
from nvc.base.value import Value
from nvc.kernel.processes import open_namespace

#: /proc/self/ns/pid of the host: PROC_PID_INIT_INO of linux/proc_ns.h.
HOST_PIDS = 4026531836


class Space(Value):
    """A pid namespace in which a slice has processes: nsfs's device and inode, the number of the slice."""

    device: int
    inode: int
    number: int = 0  # 0: not known


def pid_space(pid: int) -> tuple[int, int] | None:
    """The pid namespace of a process, by nsfs's device and inode; None: it is the host's, or the process is over.

    Raises OSError.
    """
    try:
        with closing(open_namespace(pid, "pid")) as fd:
            status = os.fstat(fd)
    except (FileNotFoundError, ProcessLookupError):
        return None
    if status.st_ino == HOST_PIDS:
        return None
    return os.minor(status.st_dev), status.st_ino  # the kernel's own form: the device has no major number
