"""What discovery found, kept until something changes: one file per driver root below the runtime directory.

A file holds nested tuples in `marshal` form, which is the fastest to read by far. It is trusted like the code of
nvc: only a regular file of mode 0600 that belongs to us, in a directory that belongs to us, is read. `marshal` is
not made for damaged bytes, so it sees none: the header has a hash of what follows. Whatever is wrong with a file,
the answer is "nothing kept": the long way is always open. Nothing that is read is ever run.
"""

from __future__ import annotations

import _imp  # its hash is that of compiled modules; to import another one costs a container start 0.2 ms and more
import marshal
import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat
import sys
from _struct import Struct  # `struct` is a file to look for, which costs a container start 0.25 ms

from nvc.base.errors import NvcError
from nvc.base.files import closing, replace_file
from nvc.base.rundir import runtime_directory
from nvc.base.types import Any
from nvc.model.request import DriverOptions

#: The largest file that is read or written, bytes. 64 GPUs with all MIG minors take 300 KiB.
LIMIT = 8 << 20

_HEADER = Struct("<8sIIQ8s")  # magic, format, Python, length and hash of what follows
_MAGIC = b"NVCINVEN"
_FORMAT = 5
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def file_name(root: os.stat_result, apart: bool = False) -> str:
    """The inventory's file for the driver root with this status.

    Callers that load modules or have a configuration file, as hooks do, have one of their own (`apart`), lest
    they and `nvc-cli` replace it in turn.
    """
    return f"inventory-{root.st_dev:x}-{root.st_ino:x}{'-hook' if apart else ''}"


def load(name: str, directory: str = "") -> Any:
    """What `store` kept under `name`, or None. `directory` replaces the runtime directory."""
    base = _open_directory(directory)
    if base < 0:
        return None
    try:
        with closing(base), closing(os.open(name, _READ, dir_fd=base)) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not _is_ours(status, 0o077) or status.st_size > LIMIT:
                return None
            data = os.read(fd, status.st_size + 1)
    except OSError:
        return None
    if len(data) < _HEADER.size:
        return None
    content = memoryview(data)[_HEADER.size :]
    # The form of `marshal` may change with every version of Python.
    if data[: _HEADER.size] != _header(content):
        return None
    try:
        value = marshal.loads(content)
    except (EOFError, TypeError, ValueError, MemoryError, SystemError):  # a hash that fits by accident
        return None
    return value if type(value) is tuple else None


def _header(content: bytes | memoryview) -> bytes:
    digest = _imp.source_hash(sys.hexversion, content)
    return _HEADER.pack(_MAGIC, _FORMAT, sys.hexversion, len(content), digest)


def store(name: str, value: Any, directory: str = "") -> bool:
    """Keeps `value` (nested tuples of numbers, strings and bytes) under `name`, atomically.

    False when there is no place for it: a rootless caller without a runtime directory does without.
    """
    data = marshal.dumps(value)
    if len(data) > LIMIT - _HEADER.size:
        return False
    base = _open_directory(directory)
    if base < 0:
        return False
    try:
        with closing(base):
            _remove_left(base, f".{name}.")
            replace_file(name, _header(data) + data, 0o600, base, sync=False)
            return True
    except OSError:
        return False


def _remove_left(base: int, prefix: str) -> None:
    """Remove what processes that were killed have left of theirs."""
    for name in os.listdir(base):
        number = name.removeprefix(prefix)
        if number != name and number.isdigit() and not os.access(f"/proc/{number}", 0):
            os.unlink(name, dir_fd=base)


def forget(options: DriverOptions, directory: str = "") -> None:
    """Drops what is kept for a driver root, so that the next discovery looks for itself.

    For a caller that found a listed file to be another one than the inventory says.
    """
    base = _open_directory(directory)
    if base < 0:
        return
    try:
        with closing(base):
            apart = bool(options.configuration) or options.load_kmods
            os.unlink(file_name(os.stat(options.root), apart), dir_fd=base)
    except OSError:
        pass


def _open_directory(directory: str) -> int:
    """A descriptor of the directory, or -1 where there is none that is ours alone."""
    try:
        path = directory or runtime_directory()
        if not path:
            return -1
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, NvcError):
        return -1
    if not _is_ours(os.fstat(fd), 0o022):
        os.close(fd)
        return -1
    return fd


def _is_ours(status: os.stat_result, forbidden: int) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & forbidden
