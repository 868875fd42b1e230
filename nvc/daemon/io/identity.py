"""Which slice a process belongs to. Nothing that the process says takes part.

A process belongs to the slice whose very quota file it sees, by device and inode, at the place of its shim. Nobody
but the host can bind that file anywhere. One that sees none may have hidden it: see lineage.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nvc.daemon.io.lineage import slice_by_lineage
from nvc.kernel import Kernel
from nvc.kernel.processes import start_of
from nvc.model.slices.entry import Entry
from nvc.slices.store.liveness import living_of
from nvc.slices.store.process_info import mount_namespace, status_number
from nvc.slices.store.process_view import ProcessView


def slice_of(kernel: Kernel, pid: int, entries: Iterable[Entry]) -> Entry | None:
    """The slice that a process is in. Raises OSError for one that has ended."""
    namespace, pid = mount_namespace(pid)
    # Those of its mount namespace first; then all, for it may have made one of its own.
    candidates = sorted(entries, key=lambda entry: entry.namespace != namespace)
    if not candidates:
        return None
    with ProcessView(kernel, pid) as view:
        for entry in candidates:
            if view.sees(entry):
                return entry
    # It may have changed its root directory inside.
    own = [entry for entry in candidates if entry.namespace == namespace]
    if len(own) == 1 and own[0].key in living_of(kernel, (own[0],)):
        return own[0]
    return slice_by_lineage(kernel, pid, candidates)


def parent_of(pid: int) -> int:
    """The number of a process's parent; 0: it has ended, or has none that is seen here."""
    try:
        return status_number(pid, b"PPid:")
    except OSError:
        return 0


def signal_process(kernel: Kernel, pid: int, start: int, number: int) -> bool:
    """Send a signal to the process that began at `start`; whether it was there. Raises OSError where that fails.

    By a descriptor: so the number cannot be given to another process between look and signal.
    """
    try:
        pidfd = kernel.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start_of(f"/proc/{pid}") != start:
            return False
        kernel.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, FileNotFoundError):
        return False
    finally:
        os.close(pidfd)
    return True
