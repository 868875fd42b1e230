"""When no thread of a process is in a call any more that began before it was locked, by what /proc says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from nvc.daemon.suspend.threads import Threads

PID = 100
Sleep = Callable[[float], None]


def thread(proc: Path, tid: int, state: str, ran: int) -> None:
    """`ran`: milliseconds."""
    place = proc / f"{PID}/task/{tid}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "stat").write_text(f"{tid} (a ) R (b) {state} 1 2 3\n")
    (place / "schedstat").write_text(f"{ran * 1_000_000} 0 0\n")


def left(proc: Path, change: Callable[[int], None] = lambda _: None) -> tuple[bool, int]:
    """What is found, and after how many looks; `change` is called before each."""
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        change(len(looks))
        looks.append(seconds)

    return Threads(str(proc)).have_left(PID, sleep), len(looks)


def test_who_sleeps_has_left(tmp_path: Path) -> None:
    thread(tmp_path, 100, "S", 5)
    thread(tmp_path, 101, "D", 5)
    assert left(tmp_path) == (True, 1)


def test_who_is_kept_from_running_is_waited_for(tmp_path: Path) -> None:
    thread(tmp_path, 100, "R", 5)
    assert left(tmp_path, lambda look: thread(tmp_path, 100, "R", 5 + (look > 40))) == (False, 1001)
    assert left(tmp_path, lambda look: thread(tmp_path, 100, "R", 5 + 2 * (look > 40))) == (True, 42)


def test_who_ends_or_sleeps_has_left(tmp_path: Path) -> None:
    def change(look: int) -> None:
        if look == 3:
            thread(tmp_path, 100, "S", 5)
        if look == 7:
            shutil.rmtree(tmp_path / "100/task/101")

    thread(tmp_path, 100, "R", 5)
    thread(tmp_path, 101, "R", 5)
    assert left(tmp_path, change) == (True, 8)


def test_a_thread_that_has_just_begun_is_not_waited_for(tmp_path: Path) -> None:
    def change(look: int) -> None:
        if look == 1:
            thread(tmp_path, 100, "R", 9)
            thread(tmp_path, 101, "R", 0)

    thread(tmp_path, 100, "R", 5)
    assert left(tmp_path, change) == (True, 2)


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    assert left(tmp_path) == (True, 1)
