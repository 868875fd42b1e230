"""A program that answers each line on its standard input with one on its standard output."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence

from . import PATIENCE


class Dialog:
    """What such a program was told, and what it says."""

    def __init__(
        self, words: Sequence[str], variables: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        self._said = b""  # not looked at yet
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, env=variables, text=True, pass_fds=pass_fds
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, *words: object) -> None:
        """Give a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def receive(self) -> list[str]:
        """The answer to the oldest command."""
        assert self.process.stdout is not None
        while b"\n" not in self._said:
            assert select.select([self.process.stdout], [], [], PATIENCE)[0], "no answer"
            part = os.read(self.process.stdout.fileno(), 65536)
            assert part, f"the process ended with {self.process.wait()}"
            self._said += part
        line, _, self._said = self._said.partition(b"\n")
        return line.decode().split()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Let it end by itself, or see that it has."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()
