"""What a process of a slice sees of the slice's files, read from the host without blocking.

A tenant may mount a file system over its own files whose server never answers (FUSE, or one over a network). A
lookup of a name there, or of a file's attributes, would block for ever. So names are looked up only in the kernel's
cache, which has every mount point. What was found is compared by what the kernel remembers of it, and is opened
only if it lies in a tmpfs. Where a name is not in the cache, or is a link in an overlay, which is never taken from
there, the kernel's list of mounts says where the quota is bound. Where the cache knows that there is nothing it
says so too: what the cache happens to know must make no difference.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from nvc.base.files import closing
from nvc.kernel import O_PATH, Kernel
from nvc.kernel.processes import open_root
from nvc.model.slices import layout
from nvc.model.slices.entry import Entry
from nvc.model.slices.ledger import LedgerError

MOUNTS_MAX = 1 << 20  # bytes of a list of mounts that are read
MOUNTS_TIME = 2_000_000  # nanoseconds of a processor, for more than the first part of it
_PART = 1 << 16
#: What a look into the cache says: nothing is there, or it is not known.
_NOT_THERE = (errno.ENOENT, errno.EAGAIN)
_OPEN = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def root_within(kernel: Kernel, path: str) -> bytes:
    """What a list of mounts (proc(5), mountinfo) calls a directory that is bound: its path in its file system.

    A part of that path proves nothing: containers can write to directories of the same file system, as Podman's
    are. Raises OSError.
    """
    with closing(os.open(path, O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        mount = kernel.identity(fd).mount
        path = os.readlink(f"/proc/self/fd/{fd}")
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            words = line.split(b" ", 5)
            if int(words[0]) == mount:
                below = path.encode("utf-8", "surrogateescape").removeprefix(words[4].rstrip(b"/"))
                return words[3].rstrip(b"/") + below
    raise FileNotFoundError(errno.ENOENT, "its mount is not in the list", path)


def is_quota(words: list[bytes], root: bytes, key: str, device: int) -> bool:
    """Whether a line of a list of mounts is of a slice's quota. `root` is that of the registry on `device`."""
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    return words[2] == number and words[3] == root + f"/{key}/quota".encode()


def _held(entry: Entry, device: int, inode: int) -> str:
    """The host's path of a file, if it is the very ledger that was made for the claim of the slice; else "".

    That is in a tmpfs, whoever shows it. A process of another container that has the root directory of one of the
    slice does not have its mounts in its list.
    """
    if not entry.claim:
        return ""
    from nvc.slices.store.registry import LEDGER

    path = f"{entry.directory}/{LEDGER}/{layout.LEDGER_NAME}"
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return ""
    return path if (status.st_dev, status.st_ino) == (device, inode) else ""


class CpuLimit:
    """Bounds the processor time that this thread spends, in nanoseconds, on work that a tenant can make long."""

    def __init__(self, most: int) -> None:
        self._end = time.thread_time_ns() + most

    def is_over(self) -> bool:
        return time.thread_time_ns() > self._end


class ProcessView:
    """The files of a slice as one process sees them. Raises OSError once it has ended. To be used with `with`."""

    def __init__(self, kernel: Kernel, pid: int) -> None:
        self.kernel = kernel
        self.pid = pid
        self.root = open_root(pid)
        self._mounts: list[list[bytes]] | None = None
        self._roots: dict[str, bytes] = {}

    def __enter__(self) -> ProcessView:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.root)

    def sees(self, entry: Entry) -> bool:
        """Whether it sees the very quota of the entry, or has it among its mounts. Raises OSError."""
        try:
            wanted = os.stat(f"{entry.directory}/quota")
        except FileNotFoundError:
            return False
        try:
            fd = self.kernel.open_cached(self.root, f"{entry.libs_dir}/{layout.QUOTA_FILE}")
        except OSError:
            return self._has_mount(entry, wanted.st_dev)
        with closing(fd):
            found = self.kernel.identity(fd)
        # It may have been moved, with its directory, and something else put in its place.
        same = (found.device, found.inode) == (wanted.st_dev, wanted.st_ino)
        return same or self._has_mount(entry, wanted.st_dev)

    def open_ledger(self, entry: Entry, before: int = -1, writable: bool = False) -> int:
        """A descriptor of the ledger that it sees: `before`, one from here, where that is of the same file.

        It can be written if that is wanted and allowed.

        Raises OSError, LedgerError.
        """
        below = f"{layout.LEDGER_DIRECTORY}/{layout.LEDGER_NAME}"
        path = f"{entry.libs_dir}/{below}"
        try:
            fd = self.kernel.open_cached(self.root, path)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            # That sees its mounts, but nobody in there has used them.
            if not entry.claim and not self._is_inside(entry):
                raise LedgerError("read ledger", path, "the container has not been entered yet") from None
            libs_dir = self._bound_at(entry, os.stat(f"{entry.directory}/quota").st_dev)
            if libs_dir is None:
                raise
            fd = self.kernel.open_cached(self.root, f"{libs_dir}/{below}")
        with closing(fd):
            found = self.kernel.identity(fd)
            if not stat.S_ISREG(found.mode):
                raise LedgerError("read ledger", path, "not a regular file")
            # That is not opened again, which may wait for somebody in the container (FAN_OPEN_PERM of fanotify(7)).
            status = os.fstat(before) if before >= 0 else None
            if status is not None and (status.st_dev, status.st_ino) == (found.device, found.inode):
                return before
            mode = os.O_RDWR if writable else os.O_RDONLY
            held = _held(entry, found.device, found.inode)
            if held:
                return os.open(held, _OPEN | os.O_NOFOLLOW | mode)
            if status is None or status.st_dev != found.device:
                self._check_kind(found.mount, path)
            try:
                return os.open(f"/proc/self/fd/{fd}", _OPEN | mode)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
            return os.open(f"/proc/self/fd/{fd}", _OPEN | os.O_RDONLY)

    def _is_inside(self, entry: Entry) -> bool:
        """Whether its root directory is the one that the slice was made for, as the entry's key has it."""
        found = self.kernel.identity(self.root)
        return f"{found.device:x}-{found.inode:x}" == "-".join(entry.key.split("-")[1:3])

    def _check_kind(self, mount: int, path: str) -> None:
        for one in self._list():
            if int(one[0]) == mount and one[one.index(b"-", 6) + 1] == b"tmpfs":
                return
        raise LedgerError("read ledger", path, "not in a tmpfs")

    def _has_mount(self, entry: Entry, device: int) -> bool:
        return any(is_quota(words, self._root_of(entry), entry.key, device) for words in self._list())

    def _root_of(self, entry: Entry) -> bytes:
        registry = os.path.dirname(entry.directory)
        if registry not in self._roots:
            self._roots[registry] = root_within(self.kernel, registry)
        return self._roots[registry]

    def _bound_at(self, entry: Entry, device: int) -> str | None:
        """The directory of libraries in which the entry's quota is bound, by the process's list of mounts."""
        below = f"/{layout.QUOTA_FILE}".encode()
        for one in self._list():
            if is_quota(one, self._root_of(entry), entry.key, device) and one[4].endswith(below):
                return one[4].removesuffix(below).decode("utf-8", "surrogateescape")
        return None

    def _list(self) -> list[list[bytes]]:
        """The words of each line of /proc/PID/mountinfo (proc(5)); of a very long one, of its beginning."""
        if self._mounts is None:
            data = bytearray()
            limit = CpuLimit(MOUNTS_TIME)
            with closing(os.open(f"/proc/{self.pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)) as fd:
                while len(data) < MOUNTS_MAX and (part := os.read(fd, _PART)):
                    data += part
                    if limit.is_over():  # a tenant may mount things by the ten thousand
                        break
            lines = [line.split(b" ") for line in bytes(data).split(b"\n")[:-1]]
            self._mounts = [words for words in lines if words[0].isdigit() and b"-" in words[6:-1]]
        return self._mounts
