"""Parses answers and logs of the driver's nvidia-cuda-mps-control. Nothing in them is trusted."""

from __future__ import annotations

import os
import re

from nvc.errors import one_line

LINE_MAX = 200  # bytes
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGT]?)B?\s*$")


def last_line(path: str) -> str:
    """The last line of a log that the driver's program wrote; empty where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.pread(fd, LINE_MAX, max(0, os.fstat(fd).st_size - LINE_MAX))
        finally:
            os.close(fd)
    except OSError:
        return ""
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return one_line(lines[-1]) if lines else ""


def is_number(text: str, wanted: int) -> bool:
    """Whether it is this percentage, as the driver writes it."""
    try:
        return abs(float(text) - wanted) < 0.5
    except ValueError:
        return False


def is_size(text: str, wanted: int) -> bool:
    """Whether a size as the driver writes it, such as `8G` for 8192M, is this one; it may have been rounded."""
    found = SIZE.search(text)
    if found is None:
        return False
    unit = 1 << 10 * " KMGT".index(found[2] or " ")
    return abs(float(found[1]) * unit - wanted) < min(unit, wanted / 2)
