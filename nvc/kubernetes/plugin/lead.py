"""Which of two plugins of a node publishes its devices and serves the device plugin: while an update replaces one,
the old one, until it ends. Both prepare claims meanwhile."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable

from nvc.kubernetes.claims.checkpoint import opened


def lead(state: str, begin: Callable[[], None]) -> None:
    """Call `begin` once no other plugin with this state directory leads: at once, or later in a thread of its own.

    The process leads until it ends. Raises CheckpointError.
    """
    fd = opened(f"{state}/lead")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        threading.Thread(target=_wait, args=(fd, begin), name="lead", daemon=True).start()
        return
    begin()


def _wait(fd: int, begin: Callable[[], None]) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX)
    begin()
