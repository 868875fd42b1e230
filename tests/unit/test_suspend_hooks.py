"""Hooks: what is one, whom nvcd tells, and what it makes of answers."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.daemon.suspend import teller
from nvc.daemon.suspend.hooks import SIGNAL_TIME, Hooks, handles
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of
from nvc.model.slices.hook import HOOK_MAX, Hook, hook_of, parse_hook

STRANGE = (b"", b"SSH-2.0\r\n", b"a" * 9000, b"HTTP/1.1 \xff\xff\xff\n")
ME = (os.getpid(), start_of("/proc/self"))


def test_hooks() -> None:
    assert hook_of("http:8000/sleep?level=1") == Hook(port=8000, path="/sleep?level=1")
    assert hook_of("signal:USR2") == Hook(signal=signal.SIGUSR2)
    assert hook_of("") is hook_of("off") is None
    assert parse_hook("--suspend-hook", "off") == "off"


@pytest.mark.parametrize(
    "text",
    ["exec:/bin/true", "http:0/", "http:65536/", "http:80", "http:/a", "http:+1/", "http:1/a b", "http:1/\r\nX",
     "http:1/a,b", "http:\u0661/", "signal:KILL", "signal:10", "signal:", "USR1", "http:1/" + HOOK_MAX * "a"],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    assert hook_of(text) is None
    with pytest.raises(InputError, match="want http:PORT/PATH"):
        parse_hook("--suspend-hook", text)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(b"HTTP/1.1 200 OK\r\n\r\n", ""), (b"HTTP/1.0 204 \r\n", ""),
     (b"HTTP/1.1 404 Not Found\r\n", "the answer is 404"),
     *((other, "the answer is not HTTP") for other in STRANGE)],
)  # fmt: skip
def test_answers(answer: bytes, cause: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        assert teller.refusal(ours) == cause


def test_another_process_with_the_same_number_is_not_told() -> None:
    with pytest.raises(ProcessLookupError):
        teller.enter(ME[0], ME[1] + 1)
    teller.enter(*ME)


class Loop:
    """Keeps what is to be done, and when."""

    def __init__(self) -> None:
        self.timed: list[tuple[int, Any]] = []
        self.ready: Any = None

    def once(self, due: int, work: Any) -> None:
        self.timed.append((due, work))

    def add(self, _: int, handler: Any) -> None:
        self.ready = handler

    def remove(self, _: int) -> None:
        self.ready = None


def hooks() -> tuple[Any, Loop, list[tuple[str, int]]]:
    loop: Any = Loop()
    return Hooks(loop, LinuxKernel()), loop, []


def test_a_request_and_its_answer() -> None:
    made, loop, told = hooks()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        made.begin(ours)
        assert made.tell("a", "http:80/x", True, ((7, 70), (8, 80)), lambda *words: told.append(words), 0)
        assert theirs.recv(100) == b"1 7 70 80 /x" and list(made.going) == ["a"]
        theirs.send(b"2 of another one")
        loop.ready(1)
        assert not told
        theirs.send(b"1 refused")
        loop.ready(2)
        assert told == [("refused", 2)] and not made.going
        loop.timed[0][1](99)  # too late to matter
        assert made.tell("a", "http:80/x", True, (ME,), lambda *words: told.append(words), 3)
        loop.timed[1][1](100)
        assert told[1] == ("no answer within 30 s", 100)
    loop.ready(3)
    assert loop.ready is None
    assert made.tell("a", "http:80/x", True, (ME,), lambda *words: told.append(words), 200)
    due, end = loop.timed[2]
    end(200)
    assert due == 0 and told[2] == ("the process that makes requests takes none", 200)


def test_signals_go_to_those_that_handle_them() -> None:
    made, loop, told = hooks()
    assert not handles("/proc/self/status", signal.SIGUSR1)
    assert made.tell("a", "signal:USR1", True, (ME,), lambda *words: told.append(words), 0)
    loop.timed[0][1](SIGNAL_TIME)
    assert told == [("no process has a handler for it", SIGNAL_TIME)]
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        assert handles("/proc/self/status", signal.SIGUSR1)
        made.tell("a", "signal:USR1", False, (ME, (ME[0], ME[1] + 1)), lambda *words: told.append(words), 0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    loop.timed[1][1](1)
    assert came == [signal.SIGUSR1] and told[1] == ("", 1)
    assert not made.tell("a", "off", True, (ME,), print, 0)
    assert not made.tell("a", "signal:USR1", True, (), print, 0)
