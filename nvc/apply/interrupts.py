"""When SIGINT may end a run: until the container is touched, and when that has failed; not between, not after.

An exit code other than 0 says that the container is as it was. A Ctrl-C that arrives when it is complete must
not say so.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import SIG_BLOCK, SIG_IGN, SIG_SETMASK, SIGINT, getsignal, pthread_sigmask, signal
    from typing import Any
else:  # what `signal` itself wraps in enums, which cost a container start a millisecond
    from _signal import SIG_BLOCK, SIG_IGN, SIG_SETMASK, SIGINT, getsignal, pthread_sigmask, signal


class HeldInterrupts:
    """SIGINT is held back while this exists; `release` or `forget` ends that."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: Any = pthread_sigmask(SIG_BLOCK, (SIGINT,))

    def release(self) -> None:
        """Let one that was held back through: KeyboardInterrupt is raised here."""
        pthread_sigmask(SIG_SETMASK, self._before)

    def forget(self, for_good: bool) -> None:
        """Drop one that was held back: it came too late. `for_good`: any more as well, for a program at its end."""
        if for_good:
            return
        try:
            handler = getsignal(SIGINT)
            signal(SIGINT, SIG_IGN)  # the kernel drops what is pending and ignored
            signal(SIGINT, handler)
        except (TypeError, ValueError):  # a handler that is not Python's; not the main thread
            pass
        pthread_sigmask(SIG_SETMASK, self._before)
