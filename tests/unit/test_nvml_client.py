"""nvcd's end of the process that asks NVML."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from nvc.daemon.audit import nvml_process
from nvc.daemon.audit.nvml_client import ENDED, NvmlClient
from nvc.daemon.io.loop import Loop
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
    client = NvmlClient(Loop(), lambda seen, now: None, said.append)
    libraries: Any = object()
    client.libraries = libraries
    assert not client.ask(1)
    assert client.failures == 1 and ENDED in said[0]
