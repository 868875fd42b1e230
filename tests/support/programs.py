"""Programs in slices of `vgpu run`, which wait until they may end."""

from __future__ import annotations

import os
import signal
import subprocess

from . import CLEAN_ENV, PATIENCE
from .begun import shared
from .begun_run import started


class Programs:
    """Programs on the driver in `root`, each in a slice. All have `words`, the options of `vgpu run`."""

    def __init__(self, launcher: str, root: str, *words: str) -> None:
        self.root = root
        self.command = [launcher, f"--root={root}", "vgpu", "run", *words]
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> int:
        """The id of a new program's process, once it runs."""
        command = [*self.command, *words, "--", "sh", "-c", "echo $$; read line"]
        pipe = subprocess.PIPE
        self.processes.append(started(command, CLEAN_ENV, stdin=pipe, stdout=pipe, text=True))
        output = self.processes[-1].stdout
        assert output is not None
        return int(output.readline())

    def refused(self, *words: str) -> str:
        """The one line that says why a program is not started."""
        launcher, *before = self.command
        prefix = os.path.dirname(os.path.dirname(launcher))
        done = shared(prefix)(*before, *words, "--", "true", check=False)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def kill(self, place: int) -> None:
        """End one so that its slice is left behind."""
        process = self.processes[place]
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        assert process.stdout.read() == ""  # its program has ended too

    def end_last(self) -> None:
        """Let the last one end."""
        self.processes.pop().communicate(timeout=PATIENCE)

    def end(self) -> None:
        """Let all end."""
        while self.processes:
            self.end_last()
