"""A program that answers each line on its standard input with one on its standard output."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from .realtime import REAL, Lines, Time


class Dialog:
    """What such a program was told, and what it says."""

    def __init__(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        time: Time = REAL,
    ) -> None:
        pipe = subprocess.PIPE
        self.time = time
        self.process = time.start(words, variables, stdin=pipe, stdout=pipe, text=True, pass_fds=pass_fds)
        self._lines = Lines(time, self.process.stdout)

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
        line = self._lines.next()
        assert line is not None, f"the process ended with {self.time.finish(self.process)}"
        return line.split()

    def kill(self) -> None:
        self.time.kill(self.process)
        self.end()

    def end(self) -> None:
        """Let it end by itself, or see that it has."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        if self.process.returncode is None:
            self.time.finish(self.process)
        self.process.stdout.close()
