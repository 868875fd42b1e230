"""Opening a file of a slice although a process of the slice holds a lease on it (fcntl(2), F_SETLEASE).

Such a lease makes an open that does not wait fail, and its holder may take it again at once. An open that waits
makes the kernel end the lease, after fs.lease-break-time at the latest, and while it waits nobody gets another
one. So a thread waits for it, and whoever wants the file waits only as long as they can.
"""

from __future__ import annotations

import errno
import os
import threading

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
    """Open the regular file that `fd`, a descriptor of O_PATH, is of; `fd` is closed in the end.

    Raises OSError, of EAGAIN where the lease does not end within `seconds`: the next call goes on waiting for it.
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
    """The process that holds a lease on a file, by /proc/locks (proc(5)); 0: none that can be named."""
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    with open("/proc/locks", encoding="ascii") as lines:
        for line in lines.read(_LOCKS_MAX).splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "LEASE" and words[5] == name:
                return int(words[4])
    return 0
