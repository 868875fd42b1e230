"""Descriptors that a client sends with a message: nvcd wants none, and must not be the one that closes them.

The last close of a file takes as long as its maker likes: for a TCP socket that lingers, up to hours. The kernel
closes a descriptor that no receiver takes in the thread that reads the message, or that closes the connection with
the message in it.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import struct
from queue import SimpleQueue
from threading import Thread

SO_PASSRIGHTS = 83  # since Linux 6.16
MOST = 253  # in one message: SCM_MAX_FD
AT_ONCE = 64  # threads
NO_LINGER = struct.pack("ii", 0, 0)
PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT


def refuse(listener: socket.socket) -> None:
    """Have the kernel refuse them to whoever connects from now on. Older kernels cannot."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError:
        pass  # every connection is asked: see `may_bring`


def may_bring(connection: socket.socket) -> bool:
    """Whether messages of a connection can have descriptors."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS) != 0
    except OSError:
        return True


def brings(connection: socket.socket) -> bool:
    """Whether the next message has descriptors. It stays where it is. Raises OSError: there is none."""
    return bool(connection.recvmsg(1, 0, PEEK)[2] & socket.MSG_CTRUNC)


def is_free(connection: socket.socket) -> bool:
    """Whether no message with descriptors is left in a connection that ends; those in front of one are dropped."""
    try:
        connection.shutdown(socket.SHUT_RD)  # nobody can send another one
    except OSError:
        return False
    try:
        while not brings(connection):
            if not connection.recv(1, socket.MSG_DONTWAIT):
                return True
    except OSError:
        return True
    return False


class Closer:
    """Closes connections: those with descriptors in threads, where nobody waits for it."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[socket.socket] = SimpleQueue()
        self._threads = 0

    def close(self, connection: socket.socket) -> None:
        """`connection` may have messages that nobody read."""
        if not may_bring(connection) or is_free(connection):
            connection.close()
            return
        self._waiting.put(connection)
        if self._threads < AT_ONCE:
            self._threads += 1
            before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
            try:
                Thread(target=self._work, daemon=True).start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _work(self) -> None:
        while True:
            _empty(self._waiting.get())


def _empty(connection: socket.socket) -> None:
    """Close it with all that is in it."""
    room = socket.CMSG_SPACE(MOST * 4)
    with connection:
        try:
            while (found := connection.recvmsg(1, room, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC))[0]:
                for _, kind, data in found[1]:
                    if kind == socket.SCM_RIGHTS:
                        _close_all(array.array("i", data))
        except OSError:
            pass  # there are no more


def _close_all(descriptors: array.array[int]) -> None:
    for fd in descriptors:
        try:
            found = socket.socket(fileno=fd)
        except OSError:  # something else
            os.close(fd)
            continue
        with found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
