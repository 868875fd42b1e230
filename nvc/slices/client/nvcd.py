"""What root asks nvcd: one question, one answer, and neither the answer nor the wait is without a bound."""

from __future__ import annotations

import os
import socket
import time

from nvc.errors import InitializationError
from nvc.fastjson import parse
from nvc.slices.client.presence import absence, socket_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATIENCE = 0.5  # seconds that who lists slices waits for a daemon that may hang
ANSWER_MAX = 16 << 20  # bytes: `state` tells of everything there is
_PART = 1 << 16


def ask(question: str, seconds: float, **words: str | int) -> dict[str, Any]:
    """The answer to a question of nvc/daemon/control.py, which comes in full within so many seconds.

    Raises InitializationError where nobody answers, or something else does.
    """
    import json  # 7 ms: only where nvcd is asked

    path = socket_path()
    try:
        found = parse(_answer(path, json.dumps({"ask": question, **words}), seconds), ANSWER_MAX)
    except OSError as error:
        cause = os.strerror(error.errno).lower() if error.errno else str(error)
        raise InitializationError("ask nvcd", path, cause, "does it run?") from None
    except ValueError as error:
        raise InitializationError("ask nvcd", path, f"its answer: {error}") from None
    if not isinstance(found, dict):
        raise InitializationError("ask nvcd", path, "its answer is no object")
    return found


def silence(seconds: float = PATIENCE) -> str:
    """Why nobody enforces policies that need nvcd: it does not run, or does not answer in time; else ""."""
    cause = absence()
    if cause:
        return cause
    try:
        ask("alive", seconds)
    except InitializationError:
        return "nvcd does not answer"
    return ""


def denial_text(key: str, uuid: str) -> str:
    """Why nvcd lets a slice have nothing more of a device, for people."""
    try:
        denied = ask("state", PATIENCE).get("denied")
    except InitializationError as error:
        return f"denied more until nvcd runs and finds the cause over: {error.cause}"
    for one in denied if isinstance(denied, list) else ():
        if isinstance(one, dict) and (one.get("key"), str(one.get("uuid")).lower()) == (key, uuid.lower()):
            return f"denied more: {one.get('kind')}: {one.get('text')}"
    return "denied more"


def _answer(path: str, question: str, seconds: float) -> bytes:
    """Raises OSError; `limit` of the parser refuses what is longer than ANSWER_MAX."""
    end = time.monotonic() + seconds
    data = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(f"{question}\n".encode())
        while len(data) <= ANSWER_MAX:
            left = end - time.monotonic()
            if left <= 0:  # however little comes, and however often
                raise TimeoutError("timed out")
            connection.settimeout(left)
            part = connection.recv(_PART)
            if not part:
                break
            data += part
    return bytes(data)
