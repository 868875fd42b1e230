"""Lines of the log that a tenant can cause: one a minute about each, then a count. Time is passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nvc.daemon.io.loop import SECOND

MINUTE = 60 * SECOND
MOST = 100  # that are told apart in a minute


@dataclass
class _Said:
    """A line, and what came since."""

    text: str
    since: int
    left: int  # how often it was not said since


class Seldom:
    """`second` is called once a second."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._said: dict[str, _Said] = {}
        self._others = 0  # about what there was no room for

    def say(self, about: str, text: str, now: int, times: int = 1) -> None:
        """Log it if nothing was said about that lately; count it otherwise."""
        known = self._said.get(about)
        if known is not None:
            known.left += times
        elif len(self._said) < MOST:
            self._said[about] = _Said(text, now, times - 1)
            self._log(text)
        else:
            self._others += times

    def second(self, now: int) -> None:
        """Log what was left out in the last minute, and forget about whom nothing was."""
        for about, known in [*self._said.items()]:
            if now < known.since + MINUTE:
                continue
            if known.left:
                self._log(f"{known.text} (left out: {known.left} times in a minute)")
                known.since, known.left = now, 0
            else:
                del self._said[about]
        if self._others and len(self._said) < MOST:
            self._log(f"left out: {self._others} lines about more than {MOST} things in a minute")
            self._others = 0
