"""The driver's checkpoint calls, in the order in which processes of a slice go away and come back.

Measured with driver 580.159.04 on an H200: the calls need no cuInit, and of a caller's rights SYS_PTRACE alone. The
process itself carries out what it is asked. So if the caller is killed, it goes on, and the next question for its
state waits for that. A call can hang: the process may be stopped.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol

from nvc.base.value import Value

#: CUprocessState.
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
#: What becomes of a slice.
IS_RUNNING, IS_SUSPENDED, IS_FAILED = "running", "suspended", "failed"
LOCK_MS = 10_000  # that work in flight may take
OUT_OF_MEMORY, NOT_INITIALIZED, ILLEGAL_STATE, NOT_READY = 2, 3, 401, 600
NO_CALLS = -1  # in the place of a CUresult: libcuda lacks them

#: What lets another process go on that was locked or checkpointed in the place of one that had ended.
_UNDO = {"lock": ("unlock",), "checkpoint": ("restore", "unlock")}

Told = Callable[[str, int], None]
Lives = Callable[[int], bool]  # whether a process lives that is meant, not whether there is one of that number


class CallFailed(Exception):
    """A call for a process did not return 0."""

    def __init__(self, step: str, pid: int, code: int) -> None:
        super().__init__(f"{step} of process {pid}: CUDA error {code}")
        self.step = step
        self.pid = pid
        self.code = code


class Driver(Protocol):
    """What is asked of the driver. Each raises CallFailed."""

    def state(self, pid: int) -> int:
        """A CUprocessState."""

    def take(self, step: str, pid: int) -> None:
        """`lock`: wait for work in flight, and hold up what comes; 600: work in flight did not end.

        `checkpoint`: take the memory off the device; 801: the driver cannot save what it has. `restore`: bring it
        back; 2: no room, and it will never come back. `unlock`: let calls go on.
        """


class Cuda:
    """The driver by its library. Raises OSError where that cannot be loaded."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def _call(self, step: str, pid: int, argument: object) -> None:
        name = f"cuCheckpointProcess{step}"
        try:
            code = int(getattr(self._library, name)(ctypes.c_int(pid), argument))
        except AttributeError:
            code = NO_CALLS
        if code:
            raise CallFailed(name, pid, code)

    def state(self, pid: int) -> int:
        """A CUprocessState. Raises CallFailed."""
        found = ctypes.c_int(-1)
        self._call("GetState", pid, ctypes.byref(found))
        return found.value

    def take(self, step: str, pid: int) -> None:
        """One of the steps of `Driver`. Raises CallFailed."""
        self._call(step.capitalize(), pid, ctypes.byref((ctypes.c_uint64 * 8)(LOCK_MS if step == "lock" else 0)))


class Outcome(Value):
    """What has become of a slice, and which call failed, if one did."""

    state: str
    step: str = ""
    pid: int = 0
    code: int = 0


class _Steps:
    """Takes steps of processes that live. The driver is asked by number, and a number can be given again."""

    def __init__(self, driver: Driver, told: Told, lives: Lives) -> None:
        self._driver, self._told, self._lives = driver, told, lives

    def take(self, name: str, pid: int) -> bool:
        """Ask the driver; False: the process has ended, and nothing stays done. Raises CallFailed."""
        if not self._lives(pid):
            return False
        self._told(name, pid)
        try:
            self._driver.take(name, pid)
        except CallFailed:
            if self._lives(pid):
                raise
            return False
        if self._lives(pid):
            return True
        for undo in _UNDO.get(name, ()):  # it ended meanwhile, so this may have been done to another
            self._told(undo, pid)
            try:
                self._driver.take(undo, pid)
            except CallFailed:
                pass  # it was not
        return False


def away(
    driver: Driver, pids: tuple[int, ...], told: Told, have_left: Callable[[int], bool], lives: Lives
) -> Outcome:
    """Lock all processes, then take their memory off the devices. If one refuses, all go on as before.

    One that another program had locked stays so: an engine may be making a checkpoint. `have_left` waits
    until no thread of a process is in a call that the driver does not hold up. Who has ended holds nothing.
    """
    steps = _Steps(driver, told, lives)
    ours: list[int] = []  # also who may be locked later than we could wait
    try:
        for pid in pids:
            try:
                steps.take("lock", pid)
            except CallFailed as error:
                ours += [pid] if error.code != ILLEGAL_STATE else []
                raise
            ours.append(pid)
        for pid in filter(lives, pids):
            told("settle", pid)
            if not have_left(pid) and lives(pid):
                raise CallFailed("the end of calls", pid, NOT_READY)
        for pid in pids:
            steps.take("checkpoint", pid)
    except CallFailed as error:
        return Outcome(back(driver, tuple(ours), told, lives).state, error.step, error.pid, error.code)
    return Outcome(IS_SUSPENDED)


def back(driver: Driver, pids: tuple[int, ...], told: Told, lives: Lives) -> Outcome:
    """Bring the memory of all back, then let them go on, whatever state each is in.

    If one cannot come back, none does: those that have go away again.
    """
    steps = _Steps(driver, told, lives)
    restored: list[int] = []
    states: dict[int, int] = {}
    try:
        for pid in filter(lives, pids):
            told("state", pid)
            try:
                state = driver.state(pid)
            except CallFailed as error:
                if lives(pid) and error.code != NOT_INITIALIZED:
                    raise
            else:
                if lives(pid):  # else it may be another's
                    states[pid] = state
        broken = [pid for pid, state in states.items() if state == FAILED]
        if broken:
            return Outcome(IS_FAILED, "cuCheckpointProcessGetState", broken[0])
        for pid in (pid for pid, state in states.items() if state == CHECKPOINTED):
            if steps.take("restore", pid):
                restored.append(pid)
        for pid in (pid for pid, state in states.items() if state != RUNNING):
            steps.take("unlock", pid)
    except CallFailed as error:
        for pid in restored:
            try:
                steps.take("checkpoint", pid)
            except CallFailed:
                pass  # it stays locked, and comes back with the others
        return Outcome(IS_FAILED, error.step, error.pid, error.code)
    return Outcome(IS_RUNNING)
