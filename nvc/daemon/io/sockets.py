"""The daemon's sockets: those that systemd opened for it, or its own. And what systemd is told."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import struct
from collections.abc import Callable, Mapping

from nvc.base.errors import InitializationError
from nvc.base.files import closing

FIRST = 3  # descriptor that systemd passes on (sd_listen_fds(3))
CONTROL = "control"
BACKLOG = 1024
_KIND = socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK


def activated(environment: Mapping[str, str]) -> dict[str, socket.socket]:
    """The sockets that were passed on, by the names of nvcd.socket. Raises InitializationError for others."""
    try:
        count = int(environment.get("LISTEN_FDS", "0"))
        mine = int(environment.get("LISTEN_PID", "0")) == os.getpid()
    except ValueError:
        return {}
    if not mine or not 0 < count <= 16:
        return {}
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    found = {}
    for number in range(count):
        fd = FIRST + number
        os.set_inheritable(fd, False)
        passed = socket.socket(fileno=fd)
        name = names[number] if number < len(names) else ""
        if (name, passed.family, passed.type) != (CONTROL, socket.AF_UNIX, socket.SOCK_STREAM):
            raise InitializationError(
                "take socket", name or str(fd), "not one of nvcd's", "see `systemctl cat nvcd.socket`"
            )
        passed.setblocking(False)
        found[name] = passed
    return found


def listener_of(path: str) -> int | None:
    """The process that listens at a stream socket; 0: it is not seen from here. None: nobody does."""
    with socket.socket(socket.AF_UNIX, _KIND) as probe:
        if probe.connect_ex(path) not in (0, errno.EAGAIN):
            return None
        (pid,) = struct.unpack_from("i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return max(int(pid), 0)


def wait_for_end(path: str, told: Callable[[int], None]) -> None:
    """Wait until the daemon that listens at the stream socket `path` has ended, if one does.

    `told` hears its process id before. Raises InitializationError.
    """
    pid = listener_of(path)
    if pid is None:
        return
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError as error:  # of a namespace that this process does not see: 0
        raise InitializationError.of("wait for nvcd", f"process {pid}", error, "stop it first") from None
    with closing(fd):
        told(pid)
        select.select((fd,), (), ())


def listen(path: str) -> socket.socket:
    """A listening stream socket of root at `path`; what a daemon that is gone left there is replaced.

    Raises InitializationError where another daemon listens, or where something else is, a symbolic link above all.
    """
    made = socket.socket(socket.AF_UNIX, _KIND)
    temporary = f"{path}.new"
    try:
        _check_free(path)
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
        # Bound under another name first: nobody sees a socket of the wrong mode, or one that does not listen.
        made.bind(temporary)
        os.chmod(temporary, 0o600)
        made.listen(BACKLOG)
        os.rename(temporary, path)
    except OSError as error:
        made.close()
        raise InitializationError.of("listen", path, error) from None
    except BaseException:
        made.close()
        raise
    return made


def listen_at(text: str, where: str) -> socket.socket | None:
    """A listening stream socket at `unix:/path` or `address:port`, which somebody gives in `where`.

    None: another process has that port, which any user may take. Raises InitializationError.
    """
    if text.startswith("unix:"):
        return listen(text[5:])
    address, _, port = text.rpartition(":")
    address = address.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, _KIND)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, int(port)))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            return None
        problem = InitializationError.of("listen", text, error, f"see {where}")
        problem.doctor = ""  # no check looks at addresses
        raise problem from None
    return made


def _check_free(path: str) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a socket"
        raise InitializationError("listen", path, what, f"remove {path}")
    with socket.socket(socket.AF_UNIX, _KIND) as probe:
        found = probe.connect_ex(path)
    if found in (0, errno.EAGAIN):
        pid = listener_of(path) or 0
        who = f" (process {pid})" if pid > 1 else ""  # systemd may have made the socket for it
        hint = "end it first: `nvcd --stop`"
        error = InitializationError("listen", path, f"another nvcd listens there{who}", hint)
        error.doctor = "vgpu.daemon"
        raise error
    if found not in (errno.ECONNREFUSED, errno.ENOENT):  # of another kind above all: EPROTOTYPE
        raise InitializationError("listen", path, "somebody else's socket", "name another path")


class Notifier:
    """Tells systemd how it goes; silent where nobody listens (sd_notify(3))."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self.address = "\0" + address[1:] if address.startswith("@") else address
        try:
            self.watchdog = int(environment.get("WATCHDOG_USEC", "0")) * 1000 // 2  # nanoseconds
        except ValueError:
            self.watchdog = 0

    def say(self, text: str) -> None:
        """`READY=1`, `STATUS=...` and the like."""
        if not self.address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.sendto(text.encode(), socket.MSG_DONTWAIT, self.address)
        except OSError:
            pass  # it is gone, or does not read: the daemon's work does not depend on it
