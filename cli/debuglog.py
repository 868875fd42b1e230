"""Where --debug logs to. Imported only when it was asked for."""

from __future__ import annotations

import errno
import os

from nvc.base.errors import InputError
from nvc.base.program import Silent
from nvc.frontends.configure import RunLog
from nvc.frontends.debuglog import DebugLog


class Unread(Silent):
    """The log of a run without the terminal that it was to write to. The launcher does not repeat such a run."""


def open_log(program: str, path: str) -> RunLog:
    """Append to `path`, or write to the standard error that `/dev/stderr` names. Raises InputError.

    Without a terminal, `/dev/tty` is a warning of `program`, and the log is empty.
    """
    if path == "/dev/stderr":
        return DebugLog(2)
    try:
        # No O_NONBLOCK would help against a fifo without a reader: whoever names one means to read it.
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except (OSError, ValueError) as error:
        if path == "/dev/tty" and isinstance(error, OSError) and error.errno == errno.ENXIO:
            from nvc_cli.output import warn

            warn(program, (f"{path}: there is no terminal: nothing is logged",))
            return Unread()
        failure = error if isinstance(error, OSError) else OSError(errno.EINVAL, "embedded NUL")
        raise InputError.of("open the debug log", path, failure, "name another file with --debug") from None
    return DebugLog(fd)
