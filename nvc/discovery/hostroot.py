"""HostRoot, the only way to read the host: every path is confined to one directory, every read bounded."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import DetectionError, HostError, InitializationError, of_host
from nvc.base.files import Closable, closing, read_up_to
from nvc.kernel import O_PATH, Kernel

#: Largest file of /proc or /sys that is read, bytes. mig-minors of a big host has 300 KiB.
PROC_LIMIT = 1 << 20

#: Seconds that one search waits in all for who holds leases on files. A file server gives one back at once.
PATIENCE = 5.0
_ENOENT, _ENOTDIR, _ELOOP = 2, 20, 40
_ROOT = "name the directory with --root, by its absolute path"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class HostRoot(Closable):
    """A directory as the root of everything that is asked for. Paths are absolute inside it.

    Methods raise OSError where the file system refuses, and DetectionError where an answer is out of bounds.
    """

    __slots__ = ("kernel", "fd", "path", "patience", "unread", "_prefix")

    def __init__(self, kernel: Kernel, fd: int, path: str) -> None:
        self.kernel = kernel
        self.fd = fd
        self.path = path  # as the caller named it, for messages and HostFacts
        self.patience = PATIENCE
        self.unread = False  # something is there that could not be read: what was found may lack it
        self._prefix: str | None = None

    @classmethod
    def at(cls, kernel: Kernel, path: str) -> HostRoot:
        """The root at `path`. Raises InitializationError."""
        if not path.startswith("/"):
            raise InitializationError("open driver root", path, "not an absolute path", _ROOT)
        try:
            return cls(kernel, os.open(path, O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), path)
        except OSError as error:
            raise InitializationError.of("open driver root", path, error, _ROOT) from None

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def open(self, path: str, flags: int = O_PATH, follow: bool = True) -> int:
        """A descriptor of `path`, links resolved inside the root; by default for looking only (O_PATH)."""
        return self.kernel.open_in_root(self.fd, path, flags, follow)

    def stat(self, path: str, follow: bool = True) -> os.stat_result:
        """The status of `path` below the root, of a link itself without `follow`. Raises OSError."""
        with closing(self.kernel.open_in_root(self.fd, path, O_PATH, follow)) as fd:
            return os.fstat(fd)

    def character(self, path: str, follow: bool = False) -> os.stat_result | None:
        """The status of the character device at `path`, None where there is none."""
        try:
            status = self.stat(path, follow)
        except OSError:
            return None
        return status if stat.S_ISCHR(status.st_mode) else None

    def exists(self, path: str) -> bool:
        """Whether `path` leads to something; an unreadable place counts as nothing."""
        try:
            os.close(self.kernel.open_in_root(self.fd, path, O_PATH))
        except OSError:
            return False
        return True

    def open_regular(self, path: str) -> tuple[int, os.stat_result]:
        """A readable descriptor of a regular file, and its status. A device or pipe is never opened.

        Raises OSError, DetectionError for another kind of file, or HostError where a process keeps a lease on it or
        the host fails.
        """
        try:
            fd = self.kernel.open_in_root(self.fd, path, O_PATH)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise DetectionError("open", path, "not a regular file")
                return os.open(f"/proc/self/fd/{fd}", _READ | os.O_CLOEXEC), status
            except BlockingIOError:
                return self._leased(fd, path), status
            finally:
                os.close(fd)
        except OSError as error:
            self.note(error, path)
            raise

    def note(self, error: OSError | DetectionError, path: str) -> None:
        """Take down that something could not be read, unless the error says that it is not there, or what it is.

        Raises HostError where the host fails.
        """
        if isinstance(error, OSError):
            of_host(error, "read", path)
            self.unread = self.unread or error.errno not in (_ENOENT, _ENOTDIR, _ELOOP)

    def _leased(self, fd: int, path: str) -> int:
        """Open a file on which a process holds a lease (fcntl(2), F_SETLEASE), as root of a container can."""
        import time

        from nvc.base import filelease

        end = time.monotonic() + self.patience
        try:
            return filelease.opened(os.dup(fd), path, os.O_RDONLY, self.patience)
        except BlockingIOError as error:
            raise HostError.of("open", path, error, "nvcd keeps others from such leases while it runs") from None
        finally:
            self.patience = max(end - time.monotonic(), 0.0)

    def read(self, path: str, limit: int = PROC_LIMIT) -> bytes:
        """The content of a file of /proc or /sys, or of a small regular one, at most `limit` bytes."""
        with closing(self.kernel.open_in_root(self.fd, path, _READ)) as fd:
            content = read_up_to(fd, limit)
        if len(content) > limit:
            raise DetectionError("read", path, f"larger than {limit} bytes")
        return content

    def read_optional(self, path: str, limit: int = PROC_LIMIT) -> bytes | None:
        """The content of a file, at most `limit` bytes; None where it cannot be read."""
        try:
            return self.read(path, limit)
        except OSError as error:
            of_host(error, "read", path)
            return None

    def entries(self, path: str, limit: int = 4096) -> list[tuple[str, int]]:
        """Names in a directory with their inode numbers, sorted; [] where there is no such directory."""
        try:
            fd = self.kernel.open_in_root(self.fd, path, _DIRECTORY)
        except OSError as error:
            self.note(error, path)
            return []
        found: list[tuple[str, int]] = []
        with closing(fd):
            with os.scandir(fd) as scan:
                for entry in scan:
                    if len(found) == limit:
                        raise DetectionError("list", path, f"more than {limit} entries")
                    found.append((entry.name, entry.inode()))
        found.sort()
        return found

    def real_path(self, fd: int) -> str:
        """The path inside the root, without links, of what `fd` holds.

        Raises DetectionError when it was deleted or is not below the root (a detached mount).
        """
        if self._prefix is None:
            self._prefix = os.readlink(f"/proc/self/fd/{self.fd}").rstrip("/")
        path = os.readlink(f"/proc/self/fd/{fd}")
        if self._prefix:
            if not path.startswith(self._prefix + "/"):
                raise DetectionError("resolve", path, f"not inside {self._prefix}")
            path = path[len(self._prefix) :]
        if not path.startswith("/") or path.endswith(" (deleted)"):
            raise DetectionError("resolve", path, "deleted while it was looked at")
        return path
