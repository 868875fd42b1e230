"""Questions of root to nvcd. Answers and waits are bounded."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Any

from nvc.base.errors import InitializationError, NvcError
from nvc.base.fastjson import parse
from nvc.base.value import Value
from nvc.model.slices.policy import policy_of
from nvc.model.slices.time_settings import TO_START
from nvc.slices.client.presence import NOT_RUNNING, absence, socket_path

PATIENCE = 0.5  # seconds that who lists slices waits for a daemon that may hang
ANSWER_TIME = 10.0  # seconds for an answer that is waited for
ANSWER_MAX = 16 << 20  # bytes: `state` tells of everything there is
PAST = 8  # violations that are over, of one slice
DENIED = "denied more"
#: Why a policy is not enforced although nvcd runs.
SHIM = "the driver's scheduler is not used; `nvcd --state` says why"
_PART = 1 << 16
ASK = "ask nvcd"
RESTART = (
    "`systemctl restart nvcd` ends no slice, and `journalctl -u nvcd -n 50` says more; "
    "without systemd, `nvcd --stop` and then `nvcd &`"
)


def ask(question: str, seconds: float, **words: str | int) -> dict[str, Any]:
    """Ask nvcd one of the questions of nvc/daemon/control.py, and wait up to `seconds` for the whole answer.

    Raises InitializationError if there is no answer, or not one of nvcd's.
    """
    import json  # 7 ms: only where nvcd is asked

    path = socket_path()
    try:
        found = parse(_answer(path, json.dumps({"ask": question, **words}), seconds), ANSWER_MAX)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
            raise failed(ASK, path, NOT_RUNNING, TO_START) from None
        raise failed(ASK, path, os.strerror(error.errno).lower() if error.errno else str(error)) from None
    except ValueError as error:
        raise failed(ASK, path, f"its answer: {error}") from None
    if not isinstance(found, dict):
        raise failed(ASK, path, "its answer is not an object")
    return found


def answer(silent: NvcError, question: str, **words: str | int) -> dict[str, Any]:
    """The answer to a question that nvcd may take some time for. Raises `silent`, with the cause, without one."""
    try:
        return ask(question, ANSWER_TIME, **words)
    except InitializationError as error:
        silent.cause = f"nvcd does not answer at {error.path}: {error.cause}"
        raise silent from None


def failed(step: str, path: str, cause: str, hint: str = RESTART) -> InitializationError:
    """The error for a `step` with nvcd that fails."""
    error = InitializationError(step, path, cause, hint)
    error.doctor = "vgpu.daemon"
    return error


def silence() -> str:
    """Why policies that need nvcd are not enforced: it does not run, or does not answer; "" if it answers."""
    cause = absence()
    if cause:
        return cause
    try:
        ask("alive", PATIENCE)
    except InitializationError:
        return "nvcd does not answer"
    return ""


def by_shim(uuid: str) -> bool:
    """Whether nvcd does not keep the time of a device, as far as it knows. Raises InitializationError."""
    return bool(ask("keeper", PATIENCE, uuid=uuid).get("problem"))


def why_by_shim(uuid: str) -> str:
    """Why nvcd does not keep the time of a device; "" where it does."""
    cause = silence()
    try:
        return cause or (SHIM if by_shim(uuid) else "")
    except InitializationError as error:
        return str(error.cause)


def not_kept(uuid: str, policy: int, *more: str) -> tuple[str, ...]:
    """A warning where nvcd does not keep a device's time for a policy that needs it, or for what `more` names."""
    what = (*((f"policy {policy_of(policy).name}",) if policy_of(policy).needs_nvcd else ()), *more)
    cause = (silence() if policy_of(policy).server else why_by_shim(uuid)) if what else ""
    hint = f"; {TO_START}" if cause == NOT_RUNNING else ""
    return (f"{uuid}: {', '.join(what)} (not enforced: {cause}){hint}",) if cause else ()


class Violations(Value):
    """The violations of one slice that nvcd has found, for people."""

    ongoing: tuple[tuple[str, str], ...]  # UUID in lower case, and what goes on
    past: tuple[str, ...]  # the last, each with its time
    problem: str = ""  # why nvcd tells nothing
    suspensions: dict[str, int] | None = None  # Counts in nvc/daemon/suspend/words.py

    def lines(self, uuid: str, denied: bool) -> list[str]:
        """The ongoing violations on one device; `denied` is the flag in the slice's quota."""
        found = [text for where, text in self.ongoing if where == uuid.lower()]
        if denied and not any(text.startswith(DENIED) for text in found):
            until = f" until nvcd runs and finds the cause over: {self.problem}" if self.problem else ""
            found.append(f"{DENIED}{until}")
        return found


def violations_of(key: str) -> Violations:
    """The violations of a slice. Never raises: `problem` says why nvcd does not answer."""
    try:
        state = ask("state", PATIENCE)
    except InitializationError as error:
        return Violations((), (), str(error.cause))
    ongoing = []
    for one in _of(state, "ongoing", key):
        who = f"process {one.get('pid')} " if one.get("pid") else ""
        text = f"{one.get('kind')}: {who}{one.get('text')}"
        denied = one.get("action") == "deny"
        ongoing.append(
            (str(one.get("uuid")).lower(), f"{DENIED}: {text}" if denied else f"{text}; {one.get('action')}")
        )
    past = [
        f"{_when(one.get('time'))} {one.get('kind')}: {one.get('text')}; {one.get('action')}"
        for one in _of(state, "events", key)
    ]
    counts = [one.get("suspensions") for one in _of(state, "slices", key)]
    return Violations(tuple(ongoing), tuple(past[-PAST:]), suspensions=counts[0] if counts else None)


def _of(state: dict[str, Any], name: str, key: str) -> list[dict[str, Any]]:
    listed = state.get(name)
    return [one for one in listed if isinstance(one, dict) and one.get("key") == key] if listed else []


def _when(seconds: object) -> str:
    known = isinstance(seconds, (int, float)) and 0 <= seconds < 1 << 40
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if known else "?"  # type: ignore[arg-type]


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
