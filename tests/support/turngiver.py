"""An nvcd for tests of the shim, that says what the test says."""

from __future__ import annotations

import os
import socket
from typing import Any

from nvc.daemon.io.wire import HELLO, MAKING, MESSAGE, NO_UUID, SIZE, VERSION, WANT, WELCOME
from nvc.slices.model import quota
from nvc.value import Value
from support import PATIENCE
from support.realtime import Time
from support.vgpushim import Slice


class Message(Value):
    """See native/vgpu/protocol.h."""

    kind: int
    reserved: int
    round: int
    uuid: bytes
    a: int
    b: int


class Talk:
    """A connection of a process."""

    def __init__(self, connection: socket.socket, time: Time) -> None:
        self.socket, self.time = connection, time
        self.made: list[Message] = []

    def receive(self) -> Message:
        """What is said next, but for contexts that are made: see `made`."""
        while True:
            assert self.time.wait([self.socket], PATIENCE), "nothing is said"
            message = Message(*MESSAGE.unpack(self.socket.recv(SIZE + 1)))
            if message.kind != MAKING:
                return message
            self.made.append(message)

    def send(self, kind: int, round: int = 0, uuid: bytes = NO_UUID, a: int = 0, b: int = 0) -> None:
        self.socket.send(MESSAGE.pack(kind, 0, round, uuid, a, b))

    def wanted(self) -> bytes:
        """What is wanted now."""
        message = self.receive()
        assert message.kind == WANT
        return message.uuid


class TurnGiver:
    """Listens where the shim of a slice looks for nvcd."""

    def __init__(self, slice_: Slice) -> None:
        self.time = slice_.time
        self.uuids = [quota.uuid_bytes(uuid) for uuid in slice_.uuids]
        directory = slice_.path("nvc/daemon")
        os.makedirs(directory)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.talks: list[Talk] = []
        fd = os.open(directory, os.O_PATH)  # the path may be too long for an address
        self.listener.bind(f"/proc/self/fd/{fd}/socket")
        os.close(fd)
        self.listener.listen(16)

    def __enter__(self) -> TurnGiver:
        return self

    def __exit__(self, *_: Any) -> None:
        for talk in self.talks:
            talk.socket.close()
        self.listener.close()

    def accept(self, seconds: float = PATIENCE) -> Talk:
        """A process that has been welcomed. Raises TimeoutError."""
        if not self.time.wait([self.listener], seconds):
            raise TimeoutError
        self.talks.append(Talk(self.listener.accept()[0], self.time))
        assert self.talks[-1].receive().kind == HELLO
        self.talks[-1].send(WELCOME, a=VERSION)
        return self.talks[-1]
