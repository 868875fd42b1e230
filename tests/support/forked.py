"""Processes that another one has forked for a test, with what tests use of subprocess.Popen."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from typing import IO, Any

from .begun import Forking


class Forked:
    """A child of `server`. Streams that were asked for as pipes are this process's ends."""

    def __init__(self, server: Forking, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._server = server
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        found = self._look(timeout)
        if found is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return found

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write, read all that it says, and wait for its end."""
        if self.stdin is not None:
            try:
                if text is not None:
                    self.stdin.write(text)
                self.stdin.close()
            except BrokenPipeError:
                pass
        said = []
        for stream in (self.stdout, self.stderr):
            said.append(stream.read() if stream is not None and not stream.closed else None)
            if stream is not None:
                stream.close()
        self.wait(timeout)
        return said[0], said[1]

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._fd], [], [], seconds)[0]:
            self.returncode = self._server.ask(self.pid)
            os.close(self._fd)
        return self.returncode
