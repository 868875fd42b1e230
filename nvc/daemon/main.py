"""nvcd's life: what it needs is opened, rights are given up, the loop runs until a signal ends it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from nvc import privileges
from nvc.daemon.book import Book
from nvc.daemon.gang import Board
from nvc.daemon.loop import SECOND, Loop
from nvc.daemon.server import Server
from nvc.daemon.sockets import CONTROL, TENANT, Notifier, activated, listen
from nvc.errors import InitializationError, PermissionDenied
from nvc.kernel import LinuxKernel
from nvc.rundir import runtime_directory
from nvc.value import Value
from nvc.vgpu import registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.config import Config
    from nvc.kernel import Kernel

TENANT_SOCKET = "socket"
CONTROL_SOCKET = "nvcd.sock"


class Settings(Value):
    """What the command line says."""

    config: Config


def log(text: str, level: int = 4) -> None:
    """One line on standard error, with the level that systemd's journal reads (sd-daemon(3)); 4: a warning."""
    sys.stderr.write(f"<{level}>{text}\n")
    sys.stderr.flush()


class Daemon:
    """Everything together."""

    def __init__(self, settings: Settings, kernel: Kernel) -> None:
        self.settings = settings
        self.kernel = kernel
        self.loop = Loop()
        self.board = Board(self._send)
        self.book = Book(kernel, self.board, log)
        self.server = Server(self.loop, self.board, self.book, log)
        self._send_now = self.server.send
        self.loop.deadlines = self.board.deadline
        self.loop.on_time = self.board.tick
        self.loop.after = self.server.after

    def _send(self, *words: object) -> None:
        self.server.send(*words)  # type: ignore[arg-type]


def run(settings: Settings) -> None:
    """Be the daemon. Raises NvcError when it cannot begin."""
    if os.geteuid() != 0:
        raise PermissionDenied("start nvcd", cause="only root can")
    kernel = LinuxKernel()
    environment = dict(os.environ)
    notifier = Notifier(environment)
    sockets = activated(environment)
    place = runtime_directory("nvcd")
    if not place:
        raise InitializationError("start nvcd", "/run/nvc/nvcd", "cannot be made")
    tenants = registry.daemon_directory()
    if TENANT not in sockets:
        sockets[TENANT] = listen(f"{tenants}/{TENANT_SOCKET}", socket.SOCK_SEQPACKET, 0o666)
    if CONTROL not in sockets:
        sockets[CONTROL] = listen(f"{place}/{CONTROL_SOCKET}", socket.SOCK_STREAM, 0o600)
    privileges.reduce("nvcd")
    daemon = Daemon(settings, kernel)
    daemon.server.open(sockets[TENANT])
    loop = daemon.loop
    loop.every(SECOND, lambda now: daemon.book.refresh(now, False))
    loop.every(5 * SECOND, lambda now: daemon.book.refresh(now))
    loop.every(SECOND, daemon.server.housekeeping)
    _end_by_signals(loop)
    if notifier.watchdog:
        loop.every(notifier.watchdog, lambda now: notifier.say("WATCHDOG=1"))
    gc.collect()
    gc.freeze()
    notifier.say("READY=1")
    try:
        loop.run()
    finally:
        notifier.say("STOPPING=1")


def _end_by_signals(loop: Loop) -> None:
    """SIGTERM and SIGINT end the loop between two events."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write)
    loop.add(read, lambda now: loop.stop())
