"""Where nvcd may listen: in place of what a daemon that is gone left, and of nothing else."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest

from nvc.base.errors import InitializationError
from nvc.daemon.io.sockets import listen, listen_at

KINDS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM)


@pytest.mark.parametrize("kind", KINDS)
def test_a_socket_that_somebody_has_is_never_replaced(scratch: str, kind: int) -> None:
    path = f"{scratch}/socket"
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(path)
        if kind != socket.SOCK_DGRAM:
            other.listen(1)
        inode = os.stat(path).st_ino
        with pytest.raises(InitializationError):
            listen(path)
        assert os.stat(path).st_ino == inode
    listen(path).close()  # it is gone


@pytest.mark.parametrize("kind", ("link", "file", "directory"))
def test_anything_else_stays_where_it_is(scratch: str, kind: str) -> None:
    path = f"{scratch}/socket"
    if kind == "link":
        os.symlink(f"{scratch}/target", path)
    elif kind == "file":
        open(path, "w", encoding="ascii").close()
    else:
        os.mkdir(path)
    with pytest.raises(InitializationError):
        listen(path)
    assert os.path.lexists(path) and not os.path.exists(f"{scratch}/target")


def test_a_crowd_at_a_port_keeps_nobody_waiting() -> None:
    """Whom the kernel has no place for tries again after a second: by then there was another crowd."""
    with contextlib.ExitStack() as stack:
        listener = listen_at("127.0.0.1:0", "metrics")
        assert listener is not None
        stack.callback(listener.close)
        for _ in range(256):
            stack.enter_context(socket.create_connection(listener.getsockname(), timeout=0.9))
