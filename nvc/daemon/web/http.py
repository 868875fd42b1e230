"""What the live page takes of HTTP: a request of some lines, an answer, and who may ask. Pure."""

from __future__ import annotations

import hmac
import ipaddress

from nvc.base.value import Value

REQUEST_MAX = 8192  # bytes, of line and headers; a request with a body is refused
OPENED_MAX, KEY_MAX = 16, 128  # slices of which one viewer sees processes, characters of a key
STATUS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    413: "Content Too Large", 421: "Misdirected Request", 503: "Service Unavailable",
}  # fmt: skip
#: Nothing but the page's own files, no code made of text, and in no frame.
HEADERS = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n"
    "Connection: close\r\n"
)


class Request(Value):
    """A request, or the status with which it is refused."""

    path: str = ""
    query: str = ""
    token: str = ""
    refused: int = 0

    @property
    def opened(self) -> tuple[str, ...]:
        """The keys of slices in `open=KEY,KEY`."""
        keys = self.query.removeprefix("open=").split(",")
        return tuple(key for key in keys if 0 < len(key) <= KEY_MAX)[:OPENED_MAX]

    def may_see(self, token: str) -> bool:
        """Whether the request has this token; to find out takes as long whatever is wrong with another one."""
        return hmac.compare_digest(self.token.encode(), token.encode())


def parsed(data: bytes) -> Request | None:
    """What a client has sent; None: not all of it yet."""
    head, end, body = data.partition(b"\r\n\r\n")
    if len(head) > REQUEST_MAX or body:
        return Request(refused=413)
    if not end:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1") or not words[1].startswith("/"):
        return Request(refused=400)
    if words[0] != "GET":
        return Request(refused=405)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or name.lower() in headers:
            return Request(refused=400)
        headers[name.lower()] = value.strip()
    if not may_name(headers.get("host", "")):
        return Request(refused=421)
    path, _, query = words[1].partition("?")
    return Request(path, query, headers.get("authorization", "").removeprefix("Bearer "))


def may_name(host: str) -> bool:
    """Whether a Host header is an address or `localhost`: another site's name may lead here too (DNS rebinding)."""
    name, _, port = host.rpartition(":") if ":" in host and not host.endswith("]") else (host, "", "0")
    if not (port.isascii() and port.isdigit()):
        return False
    try:
        return name.lower() == "localhost" or bool(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return False


def reply(status: int, kind: str = "text/plain", body: bytes | None = None, ends: bool = True) -> bytes:
    """An answer, without a body its status in words; one that does not end goes on until somebody closes it."""
    text = f"{STATUS[status]}\n".encode() if body is None else body
    more = f"Content-Length: {len(text)}\r\n" if ends else ""
    more += 'WWW-Authenticate: Bearer realm="nvcd"\r\n' if status == 401 else ""
    line = f"HTTP/1.1 {status} {STATUS[status]}\r\nContent-Type: {kind}; charset=utf-8\r\n"
    return f"{line}{more}{HEADERS}\r\n".encode() + text
