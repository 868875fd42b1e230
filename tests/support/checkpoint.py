"""The driver's checkpoint calls, made by a process of their own."""

from __future__ import annotations

import subprocess
import sys

from . import CLEAN_ENV, PATIENCE

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
_PROGRAM = """
import ctypes, sys, time
driver = ctypes.CDLL(sys.argv[1])
for word in sys.argv[3:]:
    step, _, value = word.partition("=")
    state, args = ctypes.c_int(-1), (ctypes.c_uint64 * 8)(int(value or 0))
    more = ctypes.byref(state if step.startswith("Get") else args)
    begin = time.monotonic()
    code = getattr(driver, f"cuCheckpointProcess{step}")(int(sys.argv[2]), more)
    print(code, state.value, time.monotonic() - begin, flush=True)
"""


def begin(library: str, pid: int, *steps: str) -> subprocess.Popen[str]:
    """A process that makes the calls one after another; `Lock=500` has a limit of 500 ms."""
    words = [sys.executable, "-I", "-c", _PROGRAM, library, str(pid), *steps]
    return subprocess.Popen(words, env=CLEAN_ENV, stdout=subprocess.PIPE, text=True)


def calls(library: str, pid: int, *steps: str) -> list[int]:
    """What they returned; of one that asks the state, that state as a negative number less 1."""
    return [code for code, _ in timed(library, pid, *steps)]


def timed(library: str, pid: int, *steps: str) -> list[tuple[int, float]]:
    """The same, each with the seconds that it took."""
    with begin(library, pid, *steps) as process:
        text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    found = []
    for code, state, took in map(str.split, text.splitlines()):
        found.append((int(code) if int(code) or int(state) < 0 else -1 - int(state), float(took)))
    return found
