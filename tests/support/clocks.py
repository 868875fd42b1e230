"""Clocks that are wrong, for programs of tests: tests/native/fast_clock.c; and time namespaces."""

from __future__ import annotations

import os

from . import need, run
from .simdriver import SOURCES, WARN


def fast(directory: str) -> dict[str, str]:
    """The variables with which the shim's clock runs too fast."""
    library = os.path.join(directory, "fast_clock.so")
    run(need("gcc"), *WARN, "-O2", "-shared", "-fPIC", "-o", library, os.path.join(SOURCES, "fast_clock.c"), "-ldl")
    return {"LD_PRELOAD": library}


#: Seconds for which every machine has run that tests run on: no clock can have begun before the machine's.
UPTIME = 2


def apart(seconds: int, clock: str = "monotonic") -> tuple[str, ...]:
    """The words that start a program so many seconds ahead of the machine's clock, in a time namespace."""
    assert seconds >= -UPTIME, f"a clock {-seconds} s behind wants a machine that has run for longer"
    return ("unshare", "--time", f"--{clock}={seconds}", "--fork", "--kill-child")
