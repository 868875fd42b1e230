"""What a probe that is still ending must not do to the process that started it."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from nvc.base.errors import DeviceError
from nvc.frontends import configure as pipeline
from nvc.kernel import probe


def ending() -> tuple[int, int]:
    """A child that was closed as a probe and ends when the descriptor is closed: its id and the descriptor."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    probe._unreaped.append(pid)
    return pid, write


def is_reaped(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def test_reap_waits_for_the_end() -> None:
    pid, write = ending()
    threading.Timer(0.05, os.close, [write]).start()
    probe.reap(30)
    assert is_reaped(pid) and probe._unreaped == []


def test_reap_does_not_wait_for_ever() -> None:
    pid, write = ending()
    probe.reap(0.01)
    assert probe._unreaped == [pid]
    os.close(write)
    probe.reap(30)
    assert is_reaped(pid)


def test_configure_reaps_the_probe_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pid, write = ending()

    def failing(*_: object) -> None:
        os.close(write)
        raise DeviceError("9", cause="unknown device")

    monkeypatch.setattr(pipeline, "_configure", failing)
    monkeypatch.setattr(pipeline, "_PROBE_END", 30)
    run: Any = None
    with pytest.raises(DeviceError):
        pipeline.configure(run)
    assert is_reaped(pid)
