"""A terminal of tmux, with a shell in it, in which a test types and reads."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable

from . import CLEAN_ENV, need, run, until

PROMPT = "ready>"


class Terminal:
    """`width` x `height` characters; to be used with `with`. Variables are those of the shell."""

    def __init__(self, scratch: str, width: int = 80, height: int = 24, **variables: str) -> None:
        socket = os.path.join(tempfile.mkdtemp(dir=scratch), "tmux")
        self._tmux = (need("tmux"), "-S", socket, "-f", "/dev/null")
        given = {"TERM": "tmux-256color", "PS1": PROMPT, **variables}
        words = [f"{name}={value}" for name, value in given.items()]
        shell = shlex.join(["env", *words, "bash", "--norc", "--noediting"])
        self.tmux("new-session", "-d", "-x", str(width), "-y", str(height), shell)
        self.wait_for(PROMPT)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.tmux("kill-server")

    def tmux(self, *words: str) -> str:
        return run(*self._tmux, *words, env={**CLEAN_ENV, "TERM": "xterm"}).stdout

    def type(self, line: str) -> None:
        """A line for the shell."""
        self.tmux("send-keys", "-l", line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names, such as q, Escape or C-c."""
        self.tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def shown(self, *options: str) -> list[str]:
        """The lines of the screen; with `-e` as an option, with their colours."""
        return self.tmux("capture-pane", "-p", *options).rstrip("\n").splitlines()

    def wait_until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """The lines once they are as they shall be."""

        def lines_once() -> list[str]:
            lines = self.shown()
            return lines if condition(lines) else []

        return until(lines_once, lambda: "\n".join(self.shown()))

    def wait_for(self, *texts: str) -> list[str]:
        """The lines once all of that is there."""
        return self.wait_until(lambda lines: all(text in "\n".join(lines) for text in texts))

    def is_restored(self) -> bool:
        """Whether neither the alternate screen is in use nor the cursor hidden."""
        return self.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").split() == ["0", "1"]
