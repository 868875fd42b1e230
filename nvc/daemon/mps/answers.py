"""Parses answers and logs of the driver's nvidia-cuda-mps-control. Nothing in them is trusted."""

from __future__ import annotations

import os
import re

from nvc.base.errors import one_line
from nvc.base.files import closing, lines_of
from nvc.base.value import Value

LINE_MAX = 200  # bytes
LOG_MAX = 1 << 16  # bytes of a log that are searched; it is emptied when it has more
FAULT = re.compile(r"fault|exception|fatal|illegal|killed|terminat", re.IGNORECASE)
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGT]?)B?\s*$")


def last_line(path: str) -> str:
    """The last line of a log that the driver's program wrote; empty where it cannot be read."""
    lines = lines_of(_tail(path, LINE_MAX).strip())
    return one_line(lines[-1]) if lines else ""


def _tail(path: str, most: int, position: int = 0) -> str:
    """The last bytes of a log, from `position` on at most; "" where it cannot be read."""
    try:
        with closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            size = os.fstat(fd).st_size
            begin = position if position <= size else 0  # it was emptied since
            return os.pread(fd, most, max(begin, size - most)).decode("utf-8", "replace")
    except OSError:
        return ""


class ServerStatus(Value):
    """What a control daemon says of one of its servers."""

    state: str = ""  # ACTIVE, INITIALIZING, FAULT; "": it said none
    clients: tuple[int, ...] = ()  # processes, as the host numbers them

    @property
    def faulted(self) -> bool:
        """Whether a client has caused a fault that ends all of them."""
        return "FAULT" in self.state


def server_status(text: str) -> ServerStatus:
    """Parse the answers to `get_server_status` and `get_client_list`: a word, then a number a line."""
    words = [line.strip() for line in lines_of(text) if line.strip()]
    state = next((one_line(word).upper()[:40] for word in words if not word.isdigit()), "")
    return ServerStatus(state, tuple(int(word) for word in words if word.isdigit() and len(word) < 12))


def size_of(path: str) -> int:
    """Bytes of a log; 0 where there is none."""
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0


def culprit(path: str, position: int, clients: frozenset[int]) -> int:
    """The one of `clients` that a log names in its lines on a fault, from `position` on; 0: it names none."""
    for line in lines_of(_tail(path, LOG_MAX, position)):
        named = [pid for pid in clients if re.search(rf"(?<!\d){pid}(?!\d)", line)]
        if len(named) == 1 and FAULT.search(line):
            return named[0]
    return 0


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
