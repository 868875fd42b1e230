"""The end of the process that a connection belongs to, whoever else has the socket.

A child that was forked without an exec keeps the sockets of its parent: that one's end closes nothing then.
"""

from __future__ import annotations

import os
import select

from nvc.daemon.io.identity import descriptor_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.daemon.io.clients import Client
    from nvc.daemon.io.loop import Loop
    from nvc.kernel import Kernel


def watch(loop: Loop, kernel: Kernel, client: Client, ended: Callable[[int], None]) -> int:
    """Call `ended` when the client's process is gone. Returned is what `unwatch` wants. Raises OSError."""
    pidfd = descriptor_of(kernel, client.socket, client.peer.pid)
    watch_on(loop, pidfd, ended)
    return pidfd


def watch_on(loop: Loop, pidfd: int, ended: Callable[[int], None]) -> None:
    """Call this from now on."""
    loop.remove(pidfd)
    ending = select.poll()
    ending.register(pidfd, select.POLLIN)

    def look(now: int) -> None:
        # The event may be one of a descriptor that had this number before, in the same round.
        if ending.poll(0):
            ended(now)

    loop.add(pidfd, look)


def unwatch(loop: Loop, pidfd: int) -> None:
    """No longer; the descriptor is closed."""
    if pidfd >= 0:
        loop.remove(pidfd)
        os.close(pidfd)
