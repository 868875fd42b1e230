"""The API server by plain HTTPS: five verbs on a dozen paths need no library of 45 MB.

Connections are kept and used again. Tokens are read again for each request, since kubelet replaces them hourly.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

from nvc.base.value import Value
from nvc.kubernetes.errors import ApiError

#: Seconds for one request.
TIMEOUT = 15.0
#: Bytes of an answer that are read.
ANSWER_MAX = 64 << 20
_TEXT_MAX = 300
_KEPT = 4
#: A host that has vanished without a word is noticed after a minute: silence and time between probes in seconds.
_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class Server(Value):
    """Where the API server is, and how it is spoken to."""

    host: str
    port: int
    context: ssl.SSLContext
    token: Callable[[], str]  # the bearer token of now; "" where a certificate says who calls


class Api:
    """Requests to one API server, from any thread."""

    def __init__(self, server: Callable[[], Server], agent: str, timeout: float = TIMEOUT) -> None:
        """`server` is called when it is first needed: the device plugin alone asks no API server."""
        self._find = server
        self._server: Server | None = None
        self.agent = agent
        self.timeout = timeout
        self._idle: list[http.client.HTTPSConnection] = []
        self._lock = threading.Lock()

    @property
    def server(self) -> Server:
        """Where it is. Raises InputError."""
        if self._server is None:
            self._server = self._find()
        return self._server

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def get(self, path: str) -> dict[str, Any]:
        """The object or list at a path. Raises ApiError."""
        return self.request("GET", path)

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to one request. Raises ApiError with the status that the server gave, 0 without one."""
        step = f"{method.lower()} {'from' if method == 'GET' else 'to'} the API server"
        data = None if body is None else json.dumps(body).encode()
        try:
            status, answer = self._sent(method, path, data)
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(step, path, error) from None
        return _checked(step, path, status, answer)

    def stream(self, path: str, patience: float) -> Stream:
        """The lines of an answer that goes on; it ends after `patience` seconds without one.

        Raises ApiError with the status that the server gave, 0 without one.
        """
        step = "watch at the API server"
        connection = self._connection()
        try:
            connection.connect()
            lines = connection.sock  # an answer without a length takes it over
            lines.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _ALIVE:
                lines.setsockopt(socket.IPPROTO_TCP, option, value)
            connection.request("GET", path, headers=self._headers())
            answer = connection.getresponse()
            if answer.status != 200:
                _checked(step, path, answer.status, answer.read(ANSWER_MAX))
                raise ApiError(step, path.partition("?")[0], f"HTTP {answer.status}", status=answer.status)
            lines.settimeout(patience)
            return Stream(connection, lines, answer)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _no_answer(step, path, error) from None
        except BaseException:
            connection.close()
            raise

    def _sent(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Status and body. A kept connection that the server has closed meanwhile is replaced, once."""
        headers = self._headers()
        if data is not None:
            applied = "apply-patch+yaml" if method == "PATCH" else "json"
            headers["Content-Type"] = f"application/{applied}"
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            try:
                return self._exchanged(kept, method, path, data, headers)
            except BaseException as error:
                kept.close()
                if not isinstance(error, (http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError)):
                    raise
        fresh = self._connection()
        try:
            return self._exchanged(fresh, method, path, data, headers)
        except BaseException:
            fresh.close()
            raise

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": self.agent}
        token = self.server.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _connection(self) -> http.client.HTTPSConnection:
        server = self.server
        return http.client.HTTPSConnection(
            server.host, server.port, timeout=self.timeout, context=server.context
        )

    def _exchanged(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, bytes]:
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        body = answer.read(ANSWER_MAX + 1)
        if len(body) > ANSWER_MAX:
            raise http.client.HTTPException(f"an answer of more than {ANSWER_MAX} bytes")
        with self._lock:
            if not answer.will_close and len(self._idle) < _KEPT:
                self._idle.append(connection)
                return answer.status, body
        connection.close()
        return answer.status, body


class Stream:
    """The lines of one answer, for one thread. `interrupt` may be called from any."""

    def __init__(
        self, connection: http.client.HTTPSConnection, lines: socket.socket, answer: http.client.HTTPResponse
    ) -> None:
        self._connection, self._socket, self._answer = connection, lines, answer

    def __iter__(self) -> Iterator[bytes]:
        """Until the server, the network or `interrupt` ends the answer. A line that is cut off is none."""
        while True:
            try:
                line = self._answer.readline(ANSWER_MAX)
            except (OSError, ValueError, http.client.HTTPException):
                return
            if not line.endswith(b"\n"):
                return
            yield line

    def interrupt(self) -> None:
        """End the answer, also for the thread that waits for a line."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Have no connection any more."""
        self._answer.close()
        self._connection.close()


def _no_answer(step: str, path: str, error: Exception) -> ApiError:
    cause = str(error) or type(error).__name__
    return ApiError(step, path.partition("?")[0], f"no answer: {cause[:_TEXT_MAX]}")


def _checked(step: str, path: str, status: int, answer: bytes) -> dict[str, Any]:
    """The JSON object of an answer. Raises ApiError where it is none, or says that the request has failed."""
    try:
        found = json.loads(answer) if answer else {}
    except (ValueError, RecursionError):  # a claim's parameters may be as deep as their author likes
        found = None
    if type(found) is not dict:
        raise ApiError(step, path.partition("?")[0], f"HTTP {status}, and no JSON object", status=status)
    if status >= 300:
        told = str(found.get("message") or found.get("reason") or "")[:_TEXT_MAX]
        raise ApiError(step, path.partition("?")[0], f"HTTP {status}: {told}", status=status)
    return found
