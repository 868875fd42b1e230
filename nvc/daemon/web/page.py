"""nvcd's side of the live page: the token, the process that serves it, and answers to that process.

The process is reached from outside, so it has no rights, an empty directory for its root, and no word that moves
anything here: it can ask what has changed, and no more often than a bound of processor time allows.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from nvc.base.errors import InitializationError
from nvc.base.files import replace_file
from nvc.daemon.daemon import Daemon
from nvc.daemon.io import helper
from nvc.daemon.io.loop import SECOND, received
from nvc.daemon.web import http
from nvc.daemon.web.feed import Feed
from nvc.daemon.web.server import Pages, Server
from nvc.slices.make.confine import become_nobody

TOKEN, ROOT = "page-token", "page"  # in nvcd's directory: a file, and the empty root of the process
RATIO = 220  # an answer that took a second of a processor is followed by so many without one: 0.45 %
WHOLE = 20 * SECOND  # so often an answer that tells everything does not count for that
RETRY, AGAIN = SECOND // 100, 5 * SECOND  # until more is sent, and until the process is started again
QUESTION_MAX = http.OPENED_MAX * (http.KEY_MAX + 1) + 8
FILES = 256
STATIC = {"": ("index.html", "html"), "page.js": ("page.js", "javascript"), "page.css": ("page.css", "css")}


def pages() -> Pages:
    """The files of the page. Raises OSError."""
    found = {}
    for path, (name, kind) in STATIC.items():
        with open(f"{os.path.dirname(os.path.abspath(__file__))}/static/{name}", "rb") as file:
            found[f"/{path}"] = f"text/{kind}", file.read()
    return found


def new_token(directory: str) -> str:
    """A token, which is kept in a file. Raises InitializationError.

    Each start has its own: while nvcd does not run, whoever takes the port hears that of a page that is open.
    """
    path = f"{directory}/{TOKEN}"
    made = secrets.token_urlsafe(32)
    try:
        replace_file(path, f"{made}\n".encode(), 0o600, sync=False)
    except OSError as error:
        raise InitializationError("keep a token", path, error, f"remove {path}") from None
    return made


class Page:
    """Keeps the process running, and answers it."""

    def __init__(self, daemon: Daemon, listener: socket.socket, directory: str, log: Callable[[str], None]) -> None:
        """`listener` is where the page is; `directory` is nvcd's own. Raises InitializationError, OSError."""
        self.loop, self.listener, self.log = daemon.loop, listener, log
        self.root = f"{directory}/{ROOT}"
        self.token, self.pages, self.feed = new_token(directory), pages(), Feed(daemon)
        self.pid = 0
        self._socket: socket.socket | None = None
        self._question = self._out = b""
        self._not_before = self._whole = 0
        address, port, *_ = listener.getsockname()
        place = f"http://{f'[{address}]' if ':' in address else address}:{port}/"
        daemon.page = {"address": place, "token": f"{directory}/{TOKEN}"}
        self._begin(time.monotonic_ns())

    def _begin(self, now: int) -> None:
        try:
            with suppress(FileExistsError):
                os.mkdir(self.root, 0o500)
            self.pid, self._socket = helper.start(socket.SOCK_STREAM, self._serve, "nvcd-page")
            socket.send_fds(self._socket, [b"l"], [self.listener.fileno()])
        except OSError as error:
            self._fail(str(error), now)
        else:
            self._question = self._out = b""
            self.loop.add(self._socket.fileno(), self._ready)

    def _serve(self, channel: socket.socket, parent: int) -> None:
        _, (fd,), _, _ = socket.recv_fds(channel, 1, 1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
        become_nobody(self.root, parent)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        Server(channel, socket.socket(fileno=fd), self.pages, self.token).run()

    def _ready(self, now: int) -> None:
        assert self._socket is not None
        asked = self._socket
        data = received(asked, QUESTION_MAX)
        if data is None:
            return
        self._question += data
        if not data or len(self._question) > QUESTION_MAX:
            self._fail("its process has ended" if not data else "a question that makes no sense", now)
        elif self._question.endswith(b"\n"):
            first, *opened = self._question.decode("latin-1").split(" ")
            self._question = b""
            self.loop.pause(asked.fileno(), True)
            first, keys = first.strip(), tuple(key.strip() for key in opened[: http.OPENED_MAX])
            self.loop.once(max(self._not_before, now), lambda now: self._answer(asked, first == "first", keys, now))

    def _answer(self, asked: socket.socket, first: bool, opened: tuple[str, ...], now: int) -> None:
        if self._socket is not asked:
            return
        began = time.thread_time_ns()
        data = json.dumps(self.feed.look(first, opened, now), separators=(",", ":")).encode()
        self._out = len(data).to_bytes(4, "little") + data
        if first and now >= self._whole:
            self._whole = now + WHOLE
        else:
            self._not_before = now + (time.thread_time_ns() - began) * RATIO
        self._flush(now)

    def _flush(self, now: int) -> None:
        if self._socket is None:
            return
        try:
            self._out = self._out[self._socket.send(self._out, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            pass
        except OSError:
            self._out = b""  # it has ended: the next read says so
        if self._out:
            self.loop.once(now + RETRY, self._flush)
        else:
            self.loop.pause(self._socket.fileno(), False)

    def _fail(self, problem: str, now: int) -> None:
        self.close()
        self.log(f"live page: {problem}; started again in {AGAIN // SECOND} s")
        self.loop.once(now + AGAIN, self._begin)

    def close(self) -> None:
        """End the process."""
        if self._socket is not None:
            helper.end(self.loop, self.pid, self._socket)
            os.waitpid(self.pid, 0)
            self.pid, self._socket = 0, None
