"""Opens a file of a slice on which a process of the slice holds a lease (fcntl(2), F_SETLEASE).

With such a lease, an open with O_NONBLOCK fails, and the holder may take the lease again at once. A blocking open
makes the kernel end the lease within fs.lease-break-time, and nobody gets a new one meanwhile. So a thread does the
blocking open, and callers wait for the thread no longer than they can.
"""

from __future__ import annotations

import errno
import os
import threading

from nvc.base.files import lines_of

_LOCKS_MAX = 1 << 20  # bytes of the kernel's list that are read


class _Opening:
    """A thread that opens one file."""

    def __init__(self, fd: int, flags: int) -> None:
        self.fd = -1
        self.error: OSError | None = None
        self.done = threading.Event()
        threading.Thread(target=self._run, args=(fd, flags), name="lease", daemon=True).start()

    def _run(self, fd: int, flags: int) -> None:
        try:
            self.fd = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
        except OSError as error:
            self.error = error
        finally:
            os.close(fd)
            self.done.set()


#: Those under way, or that nobody has asked for since they ended; by device, inode and flags.
_openings: dict[tuple[int, int, int], _Opening] = {}


def opened(fd: int, path: str, flags: int, seconds: float) -> int:
    """Open the regular file behind `fd`, an O_PATH descriptor, which is closed in the end. Returns the descriptor.

    Raises OSError; its number is EAGAIN if the lease does not end within `seconds`. The next call goes on waiting.
    """
    for key in [key for key, one in _openings.items() if one.fd >= 0 and not os.fstat(one.fd).st_nlink]:
        os.close(_openings.pop(key).fd)  # its slice has been removed
    status = os.fstat(fd)
    key = status.st_dev, status.st_ino, flags
    opening = _openings.get(key)
    if opening is None:
        opening = _openings[key] = _Opening(fd, flags)
    else:
        os.close(fd)
    if not opening.done.wait(seconds):
        who = holder(status.st_dev, status.st_ino)
        text = f"held by a lease of process {who or 'unknown'}; end that process, or try again"
        raise BlockingIOError(errno.EAGAIN, text, path)
    del _openings[key]
    if opening.error is not None:
        raise opening.error
    return opening.fd


def holder(device: int, inode: int) -> int:
    """The number of the process that holds a lease on a file, from /proc/locks (proc(5)); 0 if unknown."""
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    with open("/proc/locks", "rb") as locks:
        for line in lines_of(locks.read(_LOCKS_MAX).decode("ascii")):
            words = line.split()
            if len(words) > 5 and words[1] == "LEASE" and words[5] == name:
                return int(words[4])
    return 0
