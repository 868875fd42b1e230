"""The API server by plain HTTPS: five verbs on a dozen paths need no library of 45 MB.

Connections are kept and used again. Tokens are read again for each request, since kubelet replaces them hourly.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading

from nvc.kubernetes.errors import ApiError
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Seconds for one request.
TIMEOUT = 15.0
#: Bytes of an answer that are read.
ANSWER_MAX = 64 << 20
_TEXT_MAX = 300
_KEPT = 4


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

    def get(self, path: str) -> dict[str, Any]:
        """The object or list at a path. Raises ApiError."""
        return self.request("GET", path)

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to one request. Raises ApiError with the status that the server gave, 0 without one."""
        step = (
            f"{method.lower()} from the API server"
            if method == "GET"
            else f"{method.lower()} to the API server"
        )
        data = None if body is None else json.dumps(body).encode()
        try:
            status, answer = self._sent(method, path, data)
        except (OSError, http.client.HTTPException) as error:
            cause = str(error) or type(error).__name__
            raise ApiError(step, path.partition("?")[0], f"no answer: {cause[:_TEXT_MAX]}") from None
        try:
            found = json.loads(answer) if answer else {}
        except ValueError:
            found = None
        if type(found) is not dict:
            raise ApiError(step, path.partition("?")[0], f"HTTP {status}, and no JSON object", status=status)
        if status >= 300:
            told = str(found.get("message") or found.get("reason") or "")[:_TEXT_MAX]
            raise ApiError(step, path.partition("?")[0], f"HTTP {status}: {told}", status=status)
        return found

    def _sent(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Status and body. A kept connection that the server has closed meanwhile is replaced, once."""
        headers = {"Accept": "application/json", "User-Agent": self.agent}
        if data is not None:
            headers["Content-Type"] = "application/json"
        token = self.server.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            try:
                return self._exchanged(kept, method, path, data, headers)
            except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError):
                kept.close()
        server = self.server
        fresh = http.client.HTTPSConnection(
            server.host, server.port, timeout=self.timeout, context=server.context
        )
        try:
            return self._exchanged(fresh, method, path, data, headers)
        except BaseException:
            fresh.close()
            raise

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
