"""The process that serves the live page: it has no rights, and knows only what nvcd sends it.

While somebody looks, it asks nvcd for what has changed, by a line `first` or `next` with the keys of slices whose
processes are to be told. nvcd answers by JSON behind its length (four bytes, little-endian): see feed.py. What is
so now is kept here, so that one more viewer costs nvcd nothing. A viewer has it whole, then a line for each change.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from typing import Any

from nvc.daemon.io.loop import received
from nvc.daemon.web import http

TICK = 0.45  # seconds between an answer of nvcd and the next question
CONNECTIONS, VIEWERS = 48, 16
KEPT = 30.0  # seconds without a viewer until nvcd is asked for everything again
PATIENCE = 10.0  # seconds for a request, and without progress of an answer
UNREAD_MAX = 4 << 20  # bytes that wait for a viewer
LINES = "application/x-ndjson"
PARTS = ("gpus", "slices", "now")  # of what nvcd tells, by name: only what has changed

Pages = dict[str, tuple[str, bytes]]  # by path: type and content


class Connection:
    """What one client has sent, and is to be sent."""

    __slots__ = ("socket", "data", "out", "moved", "viewer", "opened")

    def __init__(self, made: socket.socket) -> None:
        self.socket = made
        self.data = b""
        self.out = bytearray()
        self.moved = time.monotonic()  # when something last went on
        self.viewer = False
        self.opened: tuple[str, ...] = ()


class Server:
    """Serves `pages` and, to who has the token, what `channel` tells."""

    def __init__(self, channel: socket.socket, listener: socket.socket, pages: Pages, token: str) -> None:
        self.channel, self.listener, self.pages, self.token = channel, listener, pages, token
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ)
        self.selector.register(listener, selectors.EVENT_READ)
        self.clients: dict[int, Connection] = {}
        self.known: dict[str, Any] = {}
        self.buffer = bytearray()
        self.asked = self.first = False  # whether an answer is to come, and whether it is to tell all
        self.due = self.watched = 0.0  # when nvcd is asked again, and when somebody last looked

    def run(self) -> None:
        """Until nvcd ends."""
        while True:
            for key, _ in self.selector.select(self._pause()):
                if key.fileobj is self.channel:
                    self._told()
                elif key.fileobj is self.listener:
                    self._accept()
                elif key.fd in self.clients:
                    self._ready(self.clients[key.fd])
            now = time.monotonic()
            for one in list(self.clients.values()):
                waits = bool(one.out) or not one.viewer
                if waits and now - one.moved > PATIENCE or len(one.out) > UNREAD_MAX:
                    self._close(one)
            self._ask(now)

    def _viewers(self) -> list[Connection]:
        return [one for one in self.clients.values() if one.viewer]

    def _pause(self) -> float | None:
        if self._viewers() and not self.asked:
            return max(self.due - time.monotonic(), 0.0)
        return 1.0 if self.clients else None

    # nvcd

    def _ask(self, now: float) -> None:
        viewers = self._viewers()
        if not viewers or self.asked or now < self.due:
            return
        if now - self.watched > KEPT:
            self.known = {}
        self.watched, self.asked, self.first = now, True, not self.known
        opened = dict.fromkeys(key for one in viewers for key in one.opened)
        words = ["first" if self.first else "next", *list(opened)[: http.OPENED_MAX]]
        self.channel.sendall(" ".join(words).encode("latin-1") + b"\n")

    def _told(self) -> None:
        data = self.channel.recv(1 << 20)
        if not data:
            os._exit(0)
        self.buffer += data
        size = int.from_bytes(self.buffer[:4], "little")
        if not 4 <= 4 + size <= len(self.buffer):
            return
        line = bytes(self.buffer[4 : 4 + size])
        del self.buffer[: 4 + size]
        self.asked, self.due = False, time.monotonic() + TICK
        fresh = not self.known
        if fresh and not self.first:
            return  # of a process before this one
        merge(self.known, json.loads(line))
        for one in self._viewers():
            self._send(one, self._whole() if fresh else line + b"\n")

    def _whole(self) -> bytes:
        return json.dumps({**self.known, "whole": True}, separators=(",", ":")).encode() + b"\n"

    # Clients

    def _accept(self) -> None:
        try:
            made, _ = self.listener.accept()
        except OSError:
            return
        made.setblocking(False)
        if len(self.clients) >= CONNECTIONS:
            self._close(next((one for one in self.clients.values() if not one.viewer), None))
        self.clients[made.fileno()] = Connection(made)
        self.selector.register(made, selectors.EVENT_READ)

    def _ready(self, one: Connection) -> None:
        if one.out:
            self._send(one, b"")
            return
        data = received(one.socket, http.REQUEST_MAX)
        if data is None:
            return
        one.data += data
        request = http.parsed(one.data)
        if not data or one.viewer:  # a viewer has nothing more to say
            self._close(one)
        elif request is not None:
            self._answer(one, request)

    def _answer(self, one: Connection, request: http.Request) -> None:
        if request.refused:
            self._send(one, http.reply(request.refused))
        elif request.path in self.pages:
            self._send(one, http.reply(200, *self.pages[request.path]))
        elif request.path != "/state":
            self._send(one, http.reply(404))
        elif not request.may_see(self.token):
            self._send(one, http.reply(401))
        elif len(self._viewers()) >= VIEWERS:
            self._send(one, http.reply(503))
        else:
            one.viewer, one.opened = True, request.opened
            self._send(one, http.reply(200, LINES, self._whole() if self.known else b"", ends=False))

    def _send(self, one: Connection, data: bytes) -> None:
        if not one.out:
            one.moved = time.monotonic()
        one.out += data
        try:
            del one.out[: one.socket.send(one.out, socket.MSG_NOSIGNAL)]
            one.moved = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            self._close(one)
            return
        if one.out or one.viewer:
            self.selector.modify(one.socket, selectors.EVENT_WRITE if one.out else selectors.EVENT_READ)
        else:
            self._close(one)

    def _close(self, one: Connection | None) -> None:
        if one is not None:
            del self.clients[one.socket.fileno()]
            self.selector.unregister(one.socket)
            one.socket.close()


def merge(known: dict[str, Any], found: dict[str, Any]) -> None:
    """Take in what nvcd tells, of some parts only what has changed."""
    for name, value in found.items():
        if name in PARTS:
            known.setdefault(name, {}).update(value)
        elif name != "gone":
            known[name] = value
    for name in found.get("gone", ()):
        for part in PARTS:
            known[part].pop(name, None)
