"""The end of a program that looks into a container whose file system does not answer (a FUSE server that hangs).

Such a system call can be ended only together with its process, so that is what happens: SIGALRM kills it. Nothing
has been changed in the container by then, and its runtime sees a hook that failed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import ITIMER_REAL, SIG_DFL, SIGALRM, setitimer, signal
else:  # `signal` wraps them in enums, which cost a container start a millisecond
    from _signal import ITIMER_REAL, SIG_DFL, SIGALRM, setitimer, signal


def set_deadline(seconds: float) -> None:
    """From now on this process has so long until `clear_deadline`."""
    signal(SIGALRM, SIG_DFL)
    setitimer(ITIMER_REAL, seconds)


def clear_deadline() -> None:
    """It may live on."""
    setitimer(ITIMER_REAL, 0)
