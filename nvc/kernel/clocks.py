"""Clocks of the host, in a time namespace too: time_namespaces(7).

The kernel adds an offset to CLOCK_MONOTONIC and CLOCK_BOOTTIME there, and to the start of a process in
/proc/PID/stat. What others compare with clocks of their own is written in the host's time: quotas and ledgers. The
shim does the same (native/vgpu/process/clock.c), and BPF programs know no other.
"""

from __future__ import annotations

import errno
import functools
import os
import time

from nvc.kernel.processes import has_ended, is_over, start_of

_TICKS = os.sysconf("SC_CLK_TCK")


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


def host_boottime() -> int:
    """The host's CLOCK_BOOTTIME now, nanoseconds. Raises OSError."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ahead("boottime")


def process_began(pid: int, proc: str = "/proc") -> int | None:
    """When a process began, in ns of the host's CLOCK_BOOTTIME, as the tracer's program has it.

    None when it is over: gone, or a zombie without threads. Raises OSError.
    """
    try:
        began = start_of(f"{proc}/{pid}")
        if has_ended(f"{proc}/{pid}"):
            return None
    except (FileNotFoundError, ProcessLookupError):
        return None
    except (ValueError, IndexError):
        raise OSError(errno.EBADMSG, "cannot be read", f"{proc}/{pid}/stat") from None
    return began * (1_000_000_000 // _TICKS) - ahead("boottime", proc)


def began_at_most(pid: int) -> int | None:
    """When a process began at most, as `process_began` has it: 0 for one that cannot be asked. Raises OSError."""
    try:
        return process_began(pid)
    except OSError:
        return None if is_over(pid) else 0
