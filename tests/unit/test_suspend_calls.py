"""The order of the driver's checkpoint calls, and what becomes of a slice whichever of them fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from nvc.daemon.suspend.calls import (
    CHECKPOINTED,
    ILLEGAL_STATE,
    IS_FAILED,
    IS_RUNNING,
    IS_SUSPENDED,
    LOCKED,
    NOT_INITIALIZED,
    NOT_READY,
    OUT_OF_MEMORY,
    RUNNING,
    CallFailed,
    Outcome,
    away,
    back,
)
from nvc.daemon.suspend.swap import IN, OUT, swapped_back
from nvc.daemon.suspend.words import failure
from nvc.daemon.suspend.worker import Held, parse
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of

PIDS = (10, 11, 12)
STEPS = {"lock": (RUNNING, LOCKED), "checkpoint": (LOCKED, CHECKPOINTED),
         "restore": (CHECKPOINTED, LOCKED), "unlock": (LOCKED, RUNNING)}  # fmt: skip


class Fake:
    """A driver. `fails`: steps and processes that do, with the number."""

    def __init__(self, fails: dict[tuple[str, int], int] | None = None, state: int = RUNNING) -> None:
        self.states = dict.fromkeys(PIDS, state)
        self.fails = fails or {}
        self.calls: list[tuple[str, int]] = []

    def take(self, name: str, pid: int) -> None:
        self.calls.append((name, pid))
        if (name, pid) in self.fails:
            raise CallFailed(name, pid, self.fails[name, pid])
        before, after = STEPS[name]
        if self.states[pid] != before:
            raise CallFailed(name, pid, 401)
        self.states[pid] = after

    def state(self, pid: int) -> int:
        if ("state", pid) in self.fails:
            raise CallFailed("state", pid, self.fails["state", pid])
        return self.states[pid]


def nothing(_: str, __: int) -> None:
    pass


def alive(_: int) -> bool:
    return True


def test_all_are_locked_before_any_goes_away() -> None:
    driver = Fake()
    assert away(driver, PIDS, nothing, alive, alive).state == IS_SUSPENDED
    assert [name for name, _ in driver.calls] == ["lock"] * 3 + ["checkpoint"] * 3
    driver.calls.clear()
    assert back(driver, PIDS, nothing, alive).state == IS_RUNNING
    assert [name for name, _ in driver.calls] == ["restore"] * 3 + ["unlock"] * 3


@pytest.mark.parametrize(("step", "pid"), list(product(("lock", "checkpoint"), PIDS)))
def test_one_that_refuses_leaves_all_running(step: str, pid: int) -> None:
    driver = Fake({(step, pid): 801})
    found = away(driver, PIDS, nothing, alive, alive)
    assert (found.state, found.step, found.pid, found.code) == (IS_RUNNING, step, pid, 801)
    assert set(driver.states.values()) == {RUNNING}


@pytest.mark.parametrize("state", [LOCKED, CHECKPOINTED])
def test_one_that_somebody_else_has_stays_theirs(state: int) -> None:
    """An engine that makes a checkpoint would save a process that runs."""
    driver = Fake()
    driver.states[11] = state
    found = away(driver, PIDS, nothing, alive, alive)
    assert (found.state, found.step, found.pid, found.code) == (IS_RUNNING, "lock", 11, ILLEGAL_STATE)
    assert driver.states == {10: RUNNING, 11: state, 12: RUNNING}


def test_one_that_stays_in_a_call_leaves_all_running() -> None:
    """It would fault, were its memory taken away."""
    driver = Fake()
    found = away(driver, PIDS, nothing, lambda pid: pid != 11, alive)
    assert (found.state, found.pid, found.code) == (IS_RUNNING, 11, NOT_READY)
    assert set(driver.states.values()) == {RUNNING} and ("checkpoint", 10) not in driver.calls


@pytest.mark.parametrize("pid", PIDS)
def test_one_that_cannot_come_back_leaves_all_away(pid: int) -> None:
    driver = Fake({("restore", pid): 2}, CHECKPOINTED)
    found = back(driver, PIDS, nothing, alive)
    assert (found.state, found.step, found.pid, found.code) == (IS_FAILED, "restore", pid, 2)
    assert set(driver.states.values()) == {CHECKPOINTED}


@pytest.mark.parametrize(("code", "state"), [(OUT_OF_MEMORY, IS_SUSPENDED), (999, IS_FAILED)])
def test_what_swaps_stays_away_where_a_gpu_is_full(code: int, state: str) -> None:
    """Somebody was faster. Unlike with checkpoints, it can be asked again."""
    driver: Any = Fake(state=CHECKPOINTED)
    take = driver.take

    def full(name: str, pid: int) -> None:
        if (name, pid) == ("restore", 11):
            raise CallFailed(IN, pid, code)
        take(name, pid)

    driver.take = full
    assert swapped_back(driver, PIDS, nothing, alive) == Outcome(state, IN, 11, code)
    assert set(driver.states.values()) == {CHECKPOINTED}


@pytest.mark.parametrize("states", list(product((RUNNING, LOCKED, CHECKPOINTED), repeat=3)))
def test_whatever_was_left_comes_back(states: tuple[int, ...]) -> None:
    """By a caller that was killed."""
    driver = Fake()
    driver.states = dict(zip(PIDS, states))
    assert back(driver, PIDS, nothing, alive).state == IS_RUNNING
    assert set(driver.states.values()) == {RUNNING}


class Reused(Fake):
    """Process 11 ends at a step of process `at`, and its number is given to one of another tenant."""

    def __init__(self, step: str, at: int, state: int = RUNNING, other: int = RUNNING) -> None:
        super().__init__(state=state)
        self._when, self._other = (step, at), other
        self.ended = False

    def take(self, name: str, pid: int) -> None:
        if (name, pid) == self._when:
            self.ended, self.states[11] = True, self._other
        super().take(name, pid)

    def lives(self, pid: int) -> bool:
        return pid != 11 or not self.ended


@pytest.mark.parametrize(("step", "at"), list(product(("lock", "checkpoint"), (10, 11))))
def test_who_is_given_the_number_of_one_that_has_ended_runs_on(step: str, at: int) -> None:
    """Also if it came while the driver was asked: then what was done is undone."""
    driver = Reused(step, at, other=LOCKED if (step, at) == ("checkpoint", 11) else RUNNING)
    assert away(driver, PIDS, nothing, alive, driver.lives).state == IS_SUSPENDED
    assert driver.states == {10: CHECKPOINTED, 11: RUNNING, 12: CHECKPOINTED}
    assert (("unlock", 11) in driver.calls) == (at == 11)
    assert back(driver, PIDS, nothing, driver.lives).state == IS_RUNNING
    assert set(driver.states.values()) == {RUNNING}


@pytest.mark.parametrize("step", ["restore", "unlock"])
def test_who_is_suspended_by_the_number_of_one_that_has_ended_stays_so(step: str) -> None:
    driver = Reused(step, 10, CHECKPOINTED, CHECKPOINTED)
    assert back(driver, PIDS, nothing, driver.lives).state == IS_RUNNING
    assert driver.states == {10: RUNNING, 11: CHECKPOINTED, 12: RUNNING}


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_processes_are_held(child: subprocess.Popen[bytes]) -> None:
    """By number and start: one that has ended does not live, though its number is not free yet."""
    begun = start_of(f"/proc/{child.pid}")
    held = Held(LinuxKernel(), ((child.pid, begun), (os.getpid(), 1), (1 << 30, 1)))
    assert held.pids == (child.pid,) and held.lives(child.pid) and not held.lives(os.getpid())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not held.lives(child.pid)


@pytest.mark.parametrize(
    ("step", "whose"),
    [("cuCheckpointProcessCheckpoint", "host"), ("cuCheckpointProcessRestore", "GPU"), (OUT, "host"), (IN, "GPU")],
)
def test_who_had_no_memory_is_said(step: str, whose: str) -> None:
    refusal = failure(Outcome(IS_FAILED, step, 11, OUT_OF_MEMORY))
    assert f"{step}: the {whose} " in refusal.cause and ("container" in refusal.hint) == (whose == "host")


def test_one_without_cuda_is_left_alone() -> None:
    assert back(Fake({("state", 11): NOT_INITIALIZED}), PIDS, nothing, alive).state == IS_RUNNING


def test_one_that_the_driver_has_given_up() -> None:
    driver = Fake(state=CHECKPOINTED)
    driver.states[12] = 3
    found = back(driver, PIDS, nothing, alive)
    assert (found.state, found.pid) == (IS_FAILED, 12) and driver.calls == []


def test_what_a_worker_says() -> None:
    assert parse(b"lock 12") == ("lock", 12)
    assert parse(b"end running - 0 0").state == IS_RUNNING  # type: ignore[union-attr]
    for packet in (b"", b"end", b"lock x", b"stop running - 0 0", b"\xff 1"):
        with pytest.raises(ValueError):
            parse(packet)
