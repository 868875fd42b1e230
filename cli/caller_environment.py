"""The environment of the caller, for programs that are started for it. Nothing of nvc obeys it."""

from __future__ import annotations

import os
import posix

#: Names the descriptor of a file that the launcher (native/launcher/start/carry.c) has filled.
VARIABLE = b"NVC_CALLERS_ENVIRONMENT"
LIMIT = 16 << 20  # bytes


def callers_environment() -> dict[str, str]:
    """The environment that the launcher was started with; ours where it did not leave one."""
    own = {
        os.fsdecode(name): os.fsdecode(value) for name, value in posix.environ.items() if name != VARIABLE
    }
    text = posix.environ.get(VARIABLE, b"")
    if not text.isdigit() or len(text) > 9:
        return own
    fd = int(text)
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:environment"):
            return own
        data = os.pread(fd, LIMIT, 0)
        os.close(fd)
    except OSError:
        return own
    found: dict[str, str] = {}
    for item in data.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if equals and name:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found
