"""What is wrong with devices now, for everybody who tells others of it: slices, kubelet, metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from nvc.base.value import Value

HEALTHY, UNHEALTHY, UNKNOWN = "healthy", "unhealthy", "unknown"


class Problem(Value):
    """Why a device is not well."""

    kind: str  # xid, lost, ecc, remapping: the key of the taint
    value: str  # of the taint: 79, pending
    text: str  # for people
    evict: bool = False  # pods that use it shall go, too


class Condition(Value):
    """The state of one GPU."""

    health: str = UNKNOWN
    problems: tuple[Problem, ...] = ()
    reason: str = ""  # why it is not known
    since: int = 0  # seconds since the epoch

    @property
    def text(self) -> str:
        return "; ".join(problem.text for problem in self.problems) or self.reason


class Board:
    """The conditions of GPUs by UUID. Whoever waits is woken by each change."""

    def __init__(self) -> None:
        self._conditions: dict[str, Condition] = {}
        self._changed = threading.Condition()
        self._version = 0
        self._closed = False

    def of(self, uuid: str) -> Condition:
        """The condition of a GPU; not known before it was looked at."""
        with self._changed:
            return self._conditions.get(uuid, Condition(reason="not looked at yet"))

    def set(self, found: dict[str, Condition]) -> bool:
        """Replace all conditions; whether any is another than before."""
        now = int(time.time())
        with self._changed:
            old = self._conditions
            new = {
                uuid: old[uuid] if uuid in old and old[uuid].replace(since=0) == one.replace(since=0)
                else one.replace(since=now)
                for uuid, one in found.items()
            }  # fmt: skip
            if new == old:
                return False
            self._conditions = new
            self._wake()
            return True

    def touch(self) -> None:
        """Wake whoever waits: something else that they tell of has changed."""
        with self._changed:
            self._wake()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._wake()

    def _wake(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def changes(self, timeout: float | None = None, alive: threading.Event | None = None) -> Iterator[None]:
        """One item at once, and one after each change, or after `timeout` seconds without one.

        Ends when the board is closed, and at the next item when `alive` is no longer set.
        """
        seen = -1
        while True:
            with self._changed:
                while self._version == seen and not self._closed and (alive is None or alive.is_set()):
                    if not self._changed.wait(timeout):
                        break
                if self._closed or alive is not None and not alive.is_set():
                    return
                seen = self._version
            yield None
