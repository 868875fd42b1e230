"""The daemon's places in /run/nvc: its sockets, and the directories of slices and policies that the kernel watches.

Somebody may remove them while it runs. Then nvcd makes them again: without a service manager nobody would start
it again, and who is connected stays served. Where it cannot, as under a unit to which the rest of /run is
read-only, it ends with a message, so that it is started anew.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable

from nvc.base.errors import InitializationError, NvcError
from nvc.base.rundir import needed_directory
from nvc.daemon import control
from nvc.daemon.daemon import Daemon
from nvc.daemon.io.loop import SECOND
from nvc.daemon.io.services import Service
from nvc.daemon.io.sockets import CONTROL, listen, listen_at
from nvc.daemon.web.page import Page
from nvc.slices.policy import policies
from nvc.slices.store import registry

CONTROL_SOCKET = "nvcd.sock"
METRICS, WEB = "metrics", "web"
GIVEN = {METRICS: "[nvcd] metrics in config.toml", WEB: "--web, or [nvcd] web in config.toml"}
AGAIN = 5 * SECOND  # between two tries to have a port that another process has
CHANGES = fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_ATTRIB | fcntl.DN_MULTISHOT


class Places:
    """Opens the sockets, and opens them again where their names are gone."""

    def __init__(self, passed: dict[str, socket.socket], metrics: str, web: str) -> None:
        """`passed` are the sockets of systemd, `metrics` where scrapers ask, `web` where browsers do.

        Raises InitializationError.
        """
        self.wanted = {key: text for key, text in ((METRICS, metrics), (WEB, web)) if text}
        self.control = f"{own_directory()}/{CONTROL_SOCKET}"
        self.problem: NvcError | None = None  # for which the daemon ends
        self._sockets: dict[str, socket.socket] = {}
        for name, made in passed.items():
            if os.path.lexists(made.getsockname()):
                self._sockets[name] = made
            else:  # its directory was removed, and only systemd still has it
                made.close()
        self._watched: dict[str, int] = {}  # a descriptor of each directory
        self._listen()

    def _listen(self) -> None:
        """Make the sockets that are missing, but for ports of other processes. Raises InitializationError."""
        if CONTROL not in self._sockets:
            self._sockets[CONTROL] = listen(self.control)
        for key in self._missing():
            made = listen_at(self.wanted[key], GIVEN[key])
            if made is not None:
                self._sockets[key] = made

    def _missing(self) -> list[str]:
        return [key for key in self.wanted if key not in self._sockets]

    def serve(self, daemon: Daemon) -> None:
        """Take connections at all of them."""
        for name in self._sockets:
            self._serve(daemon, name)
        self._await(daemon)
        daemon.loop.every(AGAIN, lambda now: self._again(daemon))

    def _await(self, daemon: Daemon) -> None:
        """Tell of ports that another process has: it can be any user's, and is no reason not to run."""
        for key in self._missing():
            daemon.slices.say(
                f"{key}: another process has {self.wanted[key]}; end it (`ss -ltnp` names it), or give another "
                f"address by {GIVEN[key]}: tried again every {AGAIN // SECOND} s"
            )

    def _again(self, daemon: Daemon) -> None:
        """Have the ports that were another process's. What else fails is told, too."""
        awaited = self._missing()
        if not awaited:
            return
        try:
            self._listen()
            for key in [key for key in awaited if key in self._sockets]:
                self._serve(daemon, key)
                daemon.log(f"{key}: listens at {self.wanted[key]} now")
        except (OSError, NvcError) as error:
            daemon.slices.say(str(error))
        self._await(daemon)

    def _serve(self, daemon: Daemon, name: str) -> None:
        listener = self._sockets[name]
        if name == CONTROL:
            Service(daemon.loop, listener, b"\n", lambda data, now: control.answer(daemon, data, now), True)
        elif name == WEB:
            daemon.closing.append(Page(daemon, listener, own_directory(), daemon.log).close)
        else:
            from nvc.daemon.metrics import Exporter

            Service(daemon.loop, listener, b"\r\n\r\n", Exporter(daemon).answer, False)

    def _paths(self) -> dict[str, str]:
        """The path of each socket that has one."""
        found = {CONTROL: self.control}
        if self.wanted.get(METRICS, "").startswith("unix:"):
            found[METRICS] = self.wanted[METRICS].removeprefix("unix:")
        return found

    def look(self, daemon: Daemon, now: int, tell: Callable[[str], None]) -> None:
        """Make again what was removed. Where that fails, `problem` says why, and the loop is stopped."""
        gone = {name: path for name, path in self._paths().items() if not os.path.lexists(path)}
        unseen = [path for path, fd in self._watched.items() if not _is_open_at(path, fd)]
        if not gone and not unseen and os.path.lexists(daemon.slices.base):
            return
        tell(f"making again what was removed: {', '.join((*gone.values(), *unseen)) or daemon.slices.base}")
        try:
            own_directory()
            for name in gone:
                old = self._sockets.pop(name)
                daemon.loop.remove(old.fileno())
                old.close()
            kept = {*self._sockets}
            self._listen()
            for name in [name for name in self._sockets if name not in kept]:
                self._serve(daemon, name)
            self.watch(daemon)
            daemon.happened("slices", now)
        except (OSError, NvcError) as error:
            if not isinstance(error, NvcError):
                error = InitializationError.of("listen", str(error.filename or self.control), error)
            self.problem = error
            daemon.loop.stop()

    def watch(self, daemon: Daemon) -> None:
        """Have the kernel tell of changes in the directories that are there now."""
        for fd in self._watched.values():
            os.close(fd)
        self._watched = watch_changes(daemon)


def _is_open_at(path: str, fd: int) -> bool:
    """Whether that name still leads to the open directory: a command may have made another one meanwhile."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def watch_changes(daemon: Daemon) -> dict[str, int]:
    """Have the kernel tell of changes of slices and policies by SIGIO while these descriptors are open."""
    watched: dict[str, int] = {}
    try:
        for path in (registry.base_directory(), policies.directory()):
            watched[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.fcntl(watched[path], fcntl.F_NOTIFY, CHANGES)
        daemon.notified = True
    except (OSError, NvcError) as error:  # OSError: a kernel without CONFIG_DNOTIFY
        daemon.notified = False
        daemon.log(f"changes of slices and policies are seen once a second only: {error}")
    return watched


def own_directory() -> str:
    """Where nvcd's socket for root is, made if need be. Raises InitializationError."""
    return needed_directory("start nvcd", "nvcd")
