"""Clocks of the host, in a time namespace too: time_namespaces(7).

The kernel adds an offset to CLOCK_MONOTONIC and CLOCK_BOOTTIME there, and to the start of a process in
/proc/PID/stat. What others compare with clocks of their own is written in the host's time: quotas and ledgers. The
shim does the same (native/vgpu/process/clock.c), and BPF programs know no other.
"""

from __future__ import annotations

import functools
import time


@functools.cache
def ahead(clock: str, proc: str = "/proc") -> int:
    """By how much `clock`, "monotonic" or "boottime", is ahead of the host's in our time namespace, nanoseconds.

    Raises OSError.
    """
    try:
        with open(f"{proc}/self/timens_offsets", encoding="ascii") as file:
            offsets = {words[0]: words[1:] for words in map(str.split, file)}
    except FileNotFoundError:  # before Linux 5.6
        return 0
    seconds, nanoseconds = map(int, offsets[clock])
    return seconds * 1_000_000_000 + nanoseconds


def host_monotonic(at: int | None = None) -> int:
    """The host's CLOCK_MONOTONIC, nanoseconds: now, or when ours was `at`. Raises OSError."""
    return (time.monotonic_ns() if at is None else at) - ahead("monotonic")
