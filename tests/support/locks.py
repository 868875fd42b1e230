"""Locks of open file descriptions (fcntl(2), F_OFD_SETLK), by which a process of a slice shows that it lives."""

from __future__ import annotations

import fcntl
import os
import struct

_GET, _SET = 36, 37
#: struct flock of the 64-bit ABIs: kind, where from, first byte, how many.
_FLOCK = struct.Struct("hhqqi4x")


def lock(fd: int, byte: int) -> None:
    """Lock a byte of a file for as long as this open file description is there."""
    fcntl.fcntl(fd, _SET, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))


def is_locked(fd: int, byte: int) -> bool:
    """Whether somebody else holds a lock on a byte of a file."""
    answer = fcntl.fcntl(fd, _GET, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
