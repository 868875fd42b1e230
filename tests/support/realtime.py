"""Programs of tests in real time; virtual.World has the same methods for those in virtual time."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from . import PATIENCE
from .begun_run import started


class Time(Protocol):
    """How a test starts programs and waits for them."""

    @property
    def now(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""

    def start(self, words: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program; the options are Popen's."""

    def wait(self, descriptors: Sequence[Any], seconds: float) -> list[Any]:
        """Wait until one can be read, at most so long. Returns those that can."""

    def finish(self, process: subprocess.Popen[Any], seconds: float = PATIENCE) -> int:
        """Wait until a program has ended. Returns its exit status."""

    def kill(self, process: subprocess.Popen[Any]) -> None:
        """Kill a program and wait for its end."""


class RealTime:
    """The time of the host."""

    @property
    def now(self) -> float:
        return time.monotonic()

    def start(self, words: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[Any]:
        return started(words, env, **options)

    def wait(self, descriptors: Sequence[Any], seconds: float) -> list[Any]:
        return select.select(descriptors, [], [], seconds)[0]

    def finish(self, process: subprocess.Popen[Any], seconds: float = PATIENCE) -> int:
        return process.wait(timeout=seconds)

    def kill(self, process: subprocess.Popen[Any]) -> None:
        process.kill()
        process.wait()


REAL = RealTime()


class Lines:
    """What a program writes, line by line."""

    def __init__(self, time: Time, stream: Any) -> None:
        self._time, self._stream, self._said = time, stream, b""

    def next(self, seconds: float = PATIENCE) -> str | None:
        """The next line; None: there is no more."""
        while b"\n" not in self._said:
            assert self._time.wait([self._stream], seconds), "no answer"
            part = os.read(self._stream.fileno(), 65536)
            if not part:
                return None
            self._said += part
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()
