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


def locked(fd: int, count: int, first: int = 0) -> frozenset[int]:
    """Which of these bytes of a file somebody else holds a lock on."""
    if count <= 0:  # to fcntl(2), no length is up to the end
        return frozenset()
    answer = fcntl.fcntl(fd, _GET, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, count, 0))
    kind, _, begin, length, _ = _FLOCK.unpack(answer)
    if kind == fcntl.F_UNLCK:
        return frozenset()
    last = first + count
    low, high = max(begin, first), min(begin + length, last) if length else last
    return frozenset(range(low, high)) | locked(fd, low - first, first) | locked(fd, last - high, high)
