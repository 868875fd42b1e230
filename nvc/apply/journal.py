"""One file for each rootfs, under /run/nvc: the lock that serialises runs, and the record of what one has done.

A run that ends, well or badly, removes it. A run that is killed leaves it, and the next one undoes it first. What
is done to a root file system of the host has no container whose end would take it back: that journal stays, under
/var/lib/nvc, with the path of the rootfs at its beginning and a mark at its end. After a boot the mounts are gone,
and what was made for them on the disk can still be taken back.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.base.errors import ContainerError, of_host
from nvc.base.files import Closable
from nvc.base.rundir import runtime_directory, state_directory
from nvc.kernel import Kernel

#: What the name of a journal ends with that is kept.
HOST = "-host"

_SIZE_MAX = 4 << 20  # bytes; a record is a path and little more
_PLACE, _KEPT = b"P", b"K"  # kinds of records, as native/core/apply/_apply.h has them
_END = b"\0"


class Journal(Closable):
    """An open, locked journal. `fd` is -1 where there is nowhere to keep one."""

    __slots__ = ("fd", "path", "interrupted", "keep")

    def __init__(self, fd: int, path: str, interrupted: bytes) -> None:
        self.fd = fd
        self.path = path
        self.interrupted = interrupted  # the records of a run that was killed
        self.keep = bool(interrupted)  # the container holds something that the next run must undo

    def begin(self, rootfs: str) -> None:
        """Note whose journal this is, for one that is kept. Raises OSError."""
        if self.fd >= 0:
            os.write(self.fd, _PLACE + rootfs.encode("utf-8", "surrogateescape") + _END + _END)

    def finish(self) -> None:
        """All was done, and is kept for whoever takes it back. Raises OSError."""
        if self.fd >= 0:
            os.write(self.fd, _KEPT + _END + _END)
        self.keep = True

    def close(self) -> None:
        """Release the lock; a journal with nothing to undo is removed before, while nobody else can hold it."""
        if self.fd < 0:
            return
        if not self.keep:
            try:
                os.unlink(self.path)
            except OSError:
                pass  # somebody cleaned /run: as good; or it stays, with nothing in it
        os.close(self.fd)
        self.fd = -1


def open_journal(kernel: Kernel, key: str, timeout: float) -> Journal:
    """Lock the journal of the rootfs named by `key`, waiting up to `timeout` seconds for another run.

    Raises ContainerError on time-out, InitializationError when the runtime directory is not safe.
    """
    directory = _directory(key)
    if not directory:
        return Journal(-1, "", b"")
    path = f"{directory}/{key}"
    while True:
        fd = _open(path)
        try:
            kernel.lock(fd, timeout)
            # The run before us unlinked it while we waited: the name stands for another file now, or none.
            if os.fstat(fd).st_nlink:
                return Journal(fd, path, read_journal(fd))
        except OSError as error:
            os.close(fd)
            raise ContainerError.of(
                "lock container", path, error, "another nvc is at work on this rootfs; see --timeout"
            ) from None
        os.close(fd)


def is_interrupted(key: str) -> bool:
    """Whether a run at the rootfs named by `key` was killed, or is at work just now."""
    directory = _directory(key)
    try:
        return bool(directory) and os.stat(f"{directory}/{key}").st_size > 0
    except OSError as error:
        of_host(error, "read journal", f"{directory}/{key}")
        return False


def _directory(key: str) -> str:
    return state_directory("containers") if key.endswith(HOST) else runtime_directory("containers")


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise ContainerError.of("open journal", path, error) from None


def read_journal(fd: int) -> bytes:
    """The records so far."""
    size = min(os.fstat(fd).st_size, _SIZE_MAX)
    return os.pread(fd, size, 0) if size else b""
