"""A process whose execve(2) never ends: whoever reads most of its /proc waits (silentfs.py)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from . import CLEAN_ENV, PATIENCE, REPO

HELD = (sys.executable, os.path.join(REPO, "tests/support/silentfs.py"))
#: What gives it mounts of its own.
APART = ("unshare", "--mount", "--propagation=private")
Hold = Callable[..., "Held"]


class Held:
    """Such a process, started in a session of its own by `words`, which give it mounts of its own."""

    def __init__(self, path: str, *words: str, name: str = "", **variables: str) -> None:
        open(path, "w", encoding="ascii").close()
        pipe, env = subprocess.PIPE, {**CLEAN_ENV, **variables}
        words = (*words, *HELD, path, "exec", *filter(None, [name]))
        self.process = subprocess.Popen(words, stdout=pipe, env=env, start_new_session=True)
        assert self.process.stdout is not None
        self.pid = int(self._line())
        assert self._line() == b"held\n"

    def _line(self) -> bytes:
        stdout = self.process.stdout
        assert stdout is not None and select.select([stdout], [], [], PATIENCE)[0]
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(stdout.fileno(), 1)
        return line

    def end(self) -> None:
        if self.process.returncode is not None:
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Starts one."""
    started: list[Held] = []

    def start(*words: str, **more: str) -> Held:
        started.append(Held(*words, **more))
        return started[-1]

    yield start
    for one in started:
        one.end()
