"""Clocks that are wrong, for programs of tests: tests/native/jumping_clock.c; and time namespaces."""

from __future__ import annotations

import os

from . import need, run
from .simdriver import SOURCES, WARN


def jumping(directory: str, how: str) -> dict[str, str]:
    """The variables with which a program's clocks jump: `wall`, `forward`, `back` or `fast`."""
    library = os.path.join(directory, "jumping_clock.so")
    if not os.path.exists(library):
        source = os.path.join(SOURCES, "jumping_clock.c")
        run(need("gcc"), *WARN, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl")
    return {"LD_PRELOAD": library, "JUMP": how}


#: Seconds for which every machine has run that tests run on: no clock can have begun before the machine's.
UPTIME = 2


def apart(seconds: int, clock: str = "monotonic") -> tuple[str, ...]:
    """The words that start a program so many seconds ahead of the machine's clock, in a time namespace."""
    assert seconds >= -UPTIME, f"a clock {-seconds} s behind wants a machine that has run for longer"
    return ("unshare", "--time", f"--{clock}={seconds}", "--fork", "--kill-child")
