"""nvcd's end of the process that asks NVML."""

from __future__ import annotations

import json
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.daemon.audit import nvml_process
from nvc.daemon.audit.nvml_client import ENDED, DeviceSeen, NvmlClient
from nvc.daemon.daemon import WHOLE, Daemon
from nvc.daemon.io.loop import SECOND, Loop
from nvc.slices.make.calibrate import Libraries


def test_a_process_that_ended_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to it fails then, and the end of the stream has not been looked at."""

    def start(_: Libraries) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        theirs.close()
        pid = os.fork()
        if not pid:
            os._exit(0)
        return pid, ours

    monkeypatch.setattr(nvml_process, "start", start)
    said: list[str] = []
    client = NvmlClient(Loop(), lambda seen, now: None, lambda now: None, said.append, False)
    libraries: Any = object()
    client.libraries = libraries
    assert not client.ask(1)
    assert client.failures == 1 and ENDED in said[0]


def test_a_glance_is_enough_while_memory_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(nvml_process, "start", lambda _: (0, ours))
    told: list[tuple[DeviceSeen, ...]] = []
    changed: list[int] = []
    client = NvmlClient(Loop(), lambda seen, now: told.append(seen), changed.append, pytest.fail, False)
    libraries: Any = object()
    client.libraries = libraries

    def answer(question: bytes, *devices: tuple[object, ...]) -> None:
        assert theirs.recv(8) == question
        data = json.dumps(devices).encode()
        theirs.send(len(data).to_bytes(4, "little") + data)
        client._ready(5)

    none = (-1, -1, -1, (), -1, ())
    with ours, theirs:
        assert client.ask(4 * SECOND)
        answer(nvml_process.PLAIN, ("GPU-1", 80, 7, 50, 20, 0, [(4711, 7)], -1, ()), ("MIG-1", 10, 3, *none))
        assert [one.processes for one in told[0]] == [((4711, 7),), ()]
        for used in (7, 8):
            assert client.glance(SECOND) and not client.glance(SECOND) and not client.ask(SECOND)
            answer(nvml_process.GLANCE, ("GPU-1", 80, used, *none))
            assert len(changed) == used - 7 and len(told) == 1
        assert client.glance(SECOND)
        answer(nvml_process.GLANCE, ("GPU-2", 80, 7, *none))
        assert len(changed) == 2, "another GPU"


@pytest.mark.parametrize("part", ["old", "suspended", "idle-suspend", "an offence", "a process ends"])
def test_a_glance_is_not_enough_where_something_goes_on(part: str) -> None:
    daemon: Any = SimpleNamespace(
        _looked=WHOLE if part != "old" else 0,
        suspender=SimpleNamespace(records={"a": 1} if part == "suspended" else {}),
        use=SimpleNamespace(seconds=lambda: {"a": 9} if part == "idle-suspend" else {}),
        verifier=SimpleNamespace(is_settled=part != "an offence"),
        accountant=SimpleNamespace(is_settled=part != "a process ends"),
    )
    assert not Daemon._is_settled(daemon, WHOLE)
