"""The log of a hook: the file that the configuration names. Standard error is for the one line of a failure."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import InputError
from nvc.base.program import Silent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.frontends.configure import RunLog

STANDARD_ERROR = "/dev/stderr"
#: O_NONBLOCK: a pipe without a reader is an error, and does not hold up the container.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_log(path: str) -> RunLog:
    """Append to `path`; "" is no log at all. A log that cannot be opened is none: a container still starts.

    Raises InputError for a file that is not ours alone: somebody else chose where root writes.
    """
    if not path:
        return Silent()
    if path == STANDARD_ERROR:
        from nvc.frontends.debuglog import DebugLog

        return DebugLog(2)
    try:
        fd = os.open(path, _APPEND, 0o640)
        status = os.fstat(fd)
    except OSError:
        if _is_link(path):
            raise _unsafe(path, "a symbolic link") from None
        return Silent()  # of a user namespace, or on a read-only host
    cause = _fault(status)
    if cause:
        os.close(fd)
        raise _unsafe(path, cause)
    from nvc.frontends.debuglog import DebugLog

    return DebugLog(fd)


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False


def _fault(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_uid not in (0, os.geteuid()) or status.st_nlink != 1:
        return "not a file of root alone"
    return "writable by others" if status.st_mode & 0o022 else ""


def _unsafe(path: str, cause: str) -> InputError:
    return InputError("open the log", path, cause, f"remove {path} or name another file in config.toml")
