"""The frames of NRI's socket: several connections over one, each of them ttrpc.

A frame begins with the number of its connection and its length. The bytes of a connection, which frames may cut
anywhere, are messages of ttrpc: length, stream, kind, flags, data. Numbers are big-endian.
"""

from __future__ import annotations

import socket
import struct

from nvc.base.errors import NvcError
from nvc.base.value import Value

STEP = "speak NRI"
#: Connections: the runtime calls the plugin on the first, the plugin calls the runtime on the second.
PLUGIN, RUNTIME = 1, 2
REQUEST, RESPONSE = 1, 2
#: Bytes of a message's data.
MESSAGE_MAX = 4 << 20
#: What a runtime reads at once: a longer frame ends the connection.
CHUNK = 4096
_FRAME = struct.Struct(">II")
_HEAD = struct.Struct(">IIBB")


class NriError(NvcError, code="NVC-2501", stage="nri", hint="see the runtime's log"):
    """The runtime's NRI socket cannot be reached, has been closed, or says what is not of the protocol."""


class Message(Value):
    """One message of ttrpc."""

    connection: int
    stream: int
    kind: int
    data: bytes


def frames(message: Message) -> bytes:
    """A message as it is sent."""
    data = _HEAD.pack(len(message.data), message.stream, message.kind, 0) + message.data
    parts = [data[place : place + CHUNK] for place in range(0, len(data), CHUNK)]
    return b"".join(_FRAME.pack(message.connection, len(part)) + part for part in parts)


class Wire:
    """A connected socket of NRI."""

    def __init__(self, connected: socket.socket, path: str) -> None:
        """`path` is for messages."""
        self._socket = connected
        self._path = path
        self._parts: dict[int, bytearray] = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def send(self, message: Message) -> None:
        """Raises NriError where the runtime has gone."""
        try:
            self._socket.sendall(frames(message))
        except OSError as error:
            raise NriError.of(STEP, self._path, error) from None

    def receive(self) -> Message | None:
        """The next message; None where the runtime has closed the socket between two.

        Raises NriError where it has closed it in the middle of one, or sends what is none.
        """
        while True:
            for connection, data in self._parts.items():
                message = self._taken(connection, data)
                if message is not None:
                    return message
            head = self._exactly(_FRAME.size, whole=not any(self._parts.values()))
            if not head:
                return None
            connection, length = _FRAME.unpack(head)
            if length > MESSAGE_MAX + _HEAD.size:
                raise NriError(STEP, self._path, f"a frame of {length} bytes")
            body = self._exactly(length)
            if connection in self._parts:
                self._parts[connection] += body

    def _taken(self, connection: int, data: bytearray) -> Message | None:
        if len(data) < _HEAD.size:
            return None
        length, stream, kind, _ = _HEAD.unpack_from(data)
        if length > MESSAGE_MAX:
            raise NriError(STEP, self._path, f"a message of {length} bytes")
        end = _HEAD.size + length
        if len(data) < end:
            return None
        message = Message(connection, stream, kind, bytes(data[_HEAD.size : end]))
        del data[:end]
        return message

    def _exactly(self, count: int, whole: bool = False) -> bytes:
        """The next bytes; none at the end of what was sent, where that is `whole`."""
        data = bytearray()
        while len(data) < count:
            try:
                part = self._socket.recv(count - len(data))
            except ConnectionError:  # closed, before it has read all
                part = b""
            except OSError as error:
                raise NriError.of(STEP, self._path, error) from None
            if not part:
                if whole and not data:
                    return b""
                raise NriError(STEP, self._path, "the runtime has closed the socket in the middle of a message")
            data += part
        return bytes(data)
