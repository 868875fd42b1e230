"""The process that sends hooks' requests into network namespaces of containers; see nvc/model/slices/hook.py.

It alone may enter them. Each request is made by a process of its own, which enters, gives up all rights for good,
and is killed after LIMIT seconds. So what answers is read by nobody who could do anything.

From nvcd it gets packets `NUMBER PID START PORT PATH`; it answers `NUMBER` and why that failed, "" if it did not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket

from nvc.base.files import closing
from nvc.daemon.io import helper
from nvc.kernel import Kernel, privileges
from nvc.kernel.processes import open_namespace, start_of
from nvc.slices.make.confine import become_nobody

NAME = "nvcd-hook"
#: To open the namespace, to enter it, and to become nobody.
RIGHTS = privileges.mask(
    privileges.SYS_PTRACE, privileges.SYS_ADMIN, privileges.SETUID, privileges.SETGID, privileges.SETPCAP
)
LIMIT = 30  # seconds for an answer: an engine moves its weights meanwhile
PACKET = 512
_CLONE_NEWNET = 0x40000000
_HEAD_MAX = 4096
_REQUEST = "POST {} HTTP/1.1\r\nHost: localhost:{}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def start(kernel: Kernel) -> tuple[int, socket.socket]:
    """The process's number, and the socket to it. Raises OSError."""

    def run(channel: socket.socket, parent: int) -> None:
        helper.confined(kernel, RIGHTS, parent)
        _serve(channel)
        os._exit(0)

    return helper.start(socket.SOCK_SEQPACKET, run, NAME)


def _serve(channel: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    channel.setblocking(True)
    while packet := channel.recv(PACKET):
        number, pid, start, port, path = packet.decode("ascii").split(" ")
        try:
            if os.fork():
                continue
            signal.alarm(LIMIT)
            cause = _told(int(pid), int(start), int(port), path)
        except OSError as error:
            cause = (error.strerror or str(error)).lower()
        channel.sendall(f"{number} {cause}".encode("ascii", "replace"))
        os._exit(0)


def _told(pid: int, start: int, port: int, path: str) -> str:
    """Why it was not told; "": it was. Raises OSError."""
    enter(pid, start)
    become_nobody("/", os.getppid())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(_REQUEST.format(path, port).encode("ascii"))
        return refusal(connection)


def refusal(connection: socket.socket) -> str:
    """What an answer says against it; "": nothing. Raises OSError."""
    head = b""
    while b"\n" not in head and len(head) < _HEAD_MAX:
        part = connection.recv(_HEAD_MAX - len(head))
        if not part:
            break
        head += part
    version, _, rest = head.partition(b" ")
    status = rest[:3].decode("ascii", "replace")
    if not version.startswith(b"HTTP/1.") or not (status.isascii() and status.isdigit()):
        return "the answer is not HTTP"
    return "" if status.startswith("2") else f"the answer is {status}"


def enter(pid: int, start: int) -> None:
    """Go into the network namespace of a process, unless that has ended. Raises OSError."""
    with closing(open_namespace(pid, "net")) as there:
        if start_of(f"/proc/{pid}") != start:  # it was there before, so it is the one that was opened
            raise ProcessLookupError(3, "another process has its number")
        if os.path.samestat(os.fstat(there), os.stat("/proc/self/ns/net")):
            return
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

