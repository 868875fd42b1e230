"""Where --debug logs to. Imported only when it was asked for."""

from __future__ import annotations

import os

from nvc.debuglog import DebugLog
from nvc.errors import InputError


def open_log(path: str) -> DebugLog:
    """Append to `path`, or write to the standard error that `/dev/stderr` names. Raises InputError."""
    if path == "/dev/stderr":
        return DebugLog(2)
    try:
        # No O_NONBLOCK would help against a fifo without a reader: whoever names one means to read it.
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else "embedded NUL"
        raise InputError("open the debug log", path, str(cause).lower()) from None
    return DebugLog(fd)
