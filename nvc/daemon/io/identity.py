"""Who is at the other end of a socket: the kernel says which process, /proc which container. Nothing that the
client says takes part.

A process belongs to the slice whose very quota file it sees, by device and inode, at the place of its shim. Nobody
but the host can bind that file anywhere. One that sees none may have hidden it: see lineage.py.
"""

from __future__ import annotations

import os
import select
import socket
import struct

from nvc.daemon.io.lineage import slice_by_lineage
from nvc.slices.store.process_info import namespace_link, start_of, status_number
from nvc.slices.store.process_view import ProcessView
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.kernel import Kernel
    from nvc.slices.store.registry import Entry

SO_PEERPIDFD = 77  # since Linux 6.5
_CREDENTIALS = struct.Struct("iII")


class Peer(Value):
    """A process, and the slice that it is in."""

    pid: int
    start: int  # clock ticks since boot
    entry: Entry


def peer_of(kernel: Kernel, connection: socket.socket, entries: Iterable[Entry]) -> Peer | None:
    """The process that connected; None: it has ended, or is in no slice.

    The descriptor of a process that still lives proves that its number was not given to another one meanwhile.
    Kernels before 6.5 give none. There it is opened by that number, and a slice's process that was given the number
    of another one of it within that moment is taken for that one.
    """
    pid = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )[0]
    if pid <= 0:
        return None  # of a pid namespace that we do not see into
    try:
        pidfd = descriptor_of(kernel, connection, pid)
    except OSError:
        return None
    try:
        start = start_of(f"/proc/{pid}")
        entry = slice_of(kernel, pid, entries)
        # Not select(2), which knows no number above 1023.
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        if entry is None or ended.poll(0):
            return None
        return Peer(pid, start, entry)
    except OSError:
        return None
    finally:
        os.close(pidfd)


def descriptor_of(kernel: Kernel, connection: socket.socket, pid: int) -> int:
    """A descriptor of the process that connected, or, before Linux 6.5, that has its number. Raises OSError."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return kernel.pidfd_open(pid)


def slice_of(kernel: Kernel, pid: int, entries: Iterable[Entry]) -> Entry | None:
    """The slice that a process is in. Raises OSError for one that has ended."""
    link, pid = namespace_link(pid)
    namespace = int(link[5:-1])  # mnt:[4026531841]
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
    if len(own) == 1 and _is_living(kernel, own[0]):
        return own[0]
    return slice_by_lineage(kernel, pid, candidates)


def _is_living(kernel: Kernel, entry: Entry) -> bool:
    from nvc.slices.store.liveness import living_of

    return entry.key in living_of(kernel, (entry,))


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
