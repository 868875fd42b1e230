"""Questions and answers on stream sockets: one question a connection, an answer of any length, and the end."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from nvc.daemon.io.loop import SECOND, Loop, received

CONNECTIONS = 32
QUESTION_MAX = 8192
PATIENCE = 10 * SECOND
RETRY = SECOND // 100  # when the other end does not read fast enough
_CREDENTIALS = struct.Struct("iII")


class Service:
    """`answer` is called with what was read up to `end`; it returns what is sent back."""

    def __init__(
        self, loop: Loop, listener: socket.socket, end: bytes, answer: Callable[[bytes, int], bytes],
        root_only: bool,
    ) -> None:  # fmt: skip
        self.loop = loop
        self.listener = listener
        self.end = end
        self.answer = answer
        self.root_only = root_only
        self.open: dict[int, tuple[socket.socket, bytearray, int]] = {}
        loop.add(listener.fileno(), self._accept)

    def _accept(self, now: int) -> None:
        try:
            connection, _ = self.listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # out of descriptors
            self.loop.rest(self.listener.fileno(), now)
            return
        connection.setblocking(False)
        if self.root_only and _uid_of(connection) != 0:
            connection.close()
            return
        if len(self.open) >= CONNECTIONS:
            self._make_room()
        fd = connection.fileno()
        self.open[fd] = connection, bytearray(), now
        self.loop.add(fd, lambda now: self._ready(fd, now))

    def _make_room(self) -> None:
        """Close the oldest of those that have not asked; where all have, of those that do not read."""
        silent = [fd for fd, (_, question, _) in self.open.items() if self.end not in question]
        self._close((silent or list(self.open))[0])

    def _ready(self, fd: int, now: int) -> None:
        connection, question, _ = self.open[fd]
        data = received(connection, QUESTION_MAX)
        if data is None:
            return
        question += data
        if self.end in question:
            self.loop.remove(fd)
            self._send(fd, connection, self.answer(bytes(question), now), now)
        elif not data or len(question) > QUESTION_MAX:
            self._close(fd)

    def _send(self, fd: int, connection: socket.socket, data: bytes, now: int) -> None:
        if fd not in self.open or self.open[fd][0] is not connection:
            return  # it was closed meanwhile
        since = self.open[fd][2]
        try:
            data = data[connection.send(data, socket.MSG_NOSIGNAL) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            data = b""
        if data and now - since < PATIENCE:
            self.loop.once(now + RETRY, lambda now: self._send(fd, connection, data, now))
        else:
            self._close(fd)

    def _close(self, fd: int) -> None:
        connection, _, _ = self.open.pop(fd)
        self.loop.remove(fd)
        connection.close()


def _uid_of(connection: socket.socket) -> int:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])
