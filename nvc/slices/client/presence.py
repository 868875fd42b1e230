"""Whether nvcd runs, by one connect: who asks does not wait."""

from __future__ import annotations

import errno
import posix

from nvc.base.rundir import runtime_directory

NOT_RUNNING = "nvcd is not running"


def socket_path() -> str:
    """The path of nvcd's socket for root."""
    return f"{runtime_directory()}/nvcd/nvcd.sock"


def absence() -> str:
    """Why nvcd cannot be reached; "" if something listens on its socket, which may still hang."""
    import _socket  # `socket` itself costs a container start 5 ms

    with_flags = _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
    connection = _socket.socket(_socket.AF_UNIX, with_flags)
    try:
        connection.connect(socket_path())
    except OSError as error:
        if error.errno == errno.EAGAIN:  # its queue is full: it is there
            return ""
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
            return NOT_RUNNING
        return f"nvcd cannot be reached: {posix.strerror(error.errno or 0).lower()}"
    finally:
        connection.close()
    return ""
