"""Threads of a locked process, by what /proc says: who is in a call that began before, who waits for the driver."""

from __future__ import annotations

import platform
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.daemon.suspend.threads import Threads

PID = 100


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


def test_of_whom_nothing_is_known_is_waited_for(tmp_path: Path) -> None:
    """A kernel without schedstat."""
    thread(tmp_path, 100, "R", 5)
    (tmp_path / f"{PID}/task/100/schedstat").unlink()
    assert left(tmp_path)[0] is False


def test_a_process_whose_threads_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / str(PID)).mkdir()
    (tmp_path / f"{PID}/task").write_text("")
    with pytest.raises(NotADirectoryError):
        left(tmp_path)


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    assert left(tmp_path) == (True, 1)


CODE = 0x7F00_0000_0000
STACK = 0x2000
FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]


def sleeper(proc: Path, call: str, words: list[int], library: str = "libcuda.so.580.159.04") -> bool:
    """Whether a thread in `call` with those words on its stack waits for the driver."""
    thread(proc, 101, "S", 0)
    (proc / f"{PID}/task/101/syscall").write_text(call)
    (proc / f"{PID}/maps").write_text(
        f"{CODE:x}-{CODE + 0x1000:x} r-xp 00000000 08:01 7  /usr/lib/a place/{library}\n"
        f"{CODE + 0x1000:x}-{CODE + 0x2000:x} rw-p 00001000 08:01 7  /usr/lib/a place/{library}\n"
        f"{CODE + 0x2000:x}-{CODE + 0x3000:x} r-xp 00000000 00:00 0 \n"
    )
    (proc / f"{PID}/mem").write_bytes(bytes(STACK) + struct.pack(f"<{len(words)}Q", *words))
    return Threads(str(proc)).wait_for_driver(PID)


def asleep(number: int, pc: int = 1) -> str:
    return f"{number} 0x1 0x189 0x3 0x0 0x0 0xffffffff {STACK:#x} {pc:#x}\n"


@pytest.mark.parametrize("library", ["libcuda.so.580.159.04", "real-libcuda.so.1"])
def test_who_is_held_up_by_the_driver(tmp_path: Path, library: str) -> None:
    assert sleeper(tmp_path, asleep(FUTEX), [5, 6, CODE + 0x10, 0], library)
    assert sleeper(tmp_path, asleep(FUTEX, CODE + 0x20), [], library)


@pytest.mark.parametrize(
    ("call", "words", "library"),
    [
        (asleep(FUTEX), [5, CODE + 0x1010, CODE + 0x2010], "libcuda.so.1"),  # data, and no library
        (asleep(FUTEX), [0] * 16 + [CODE], "libcuda.so.1"),  # far up: a thread of the driver
        (asleep(FUTEX + 1), [CODE], "libcuda.so.1"),  # another call
        (asleep(FUTEX), [CODE], "libcudart.so.12"),
        ("running", [CODE], "libcuda.so.1"),
        (f"-1 {STACK:#x} 0x1", [CODE], "libcuda.so.1"),
        ("", [CODE], "libcuda.so.1"),
    ],
)
def test_who_waits_for_something_else(tmp_path: Path, call: str, words: list[int], library: str) -> None:
    assert not sleeper(tmp_path, call, words, library)


def test_a_stack_that_cannot_be_read(tmp_path: Path) -> None:
    assert not sleeper(tmp_path, asleep(FUTEX).replace(f"{STACK:#x}", "0x7ffffffffffff000"), [CODE])


def test_a_stack_in_the_half_of_the_kernel(tmp_path: Path) -> None:
    assert not sleeper(tmp_path, asleep(FUTEX).replace(f"{STACK:#x}", "0xfffffffffffffff8"), [CODE])


@pytest.mark.parametrize("separator", ["\f", "\r", "\x1c", "\x85", "\u2028"])
def test_the_name_of_a_mapped_file_is_no_line(tmp_path: Path, separator: str) -> None:
    """The kernel escapes a line feed alone."""
    assert not sleeper(tmp_path, asleep(FUTEX), [], f"x{separator}zz-qq r-xp 0 0 0 libcuda.so\n1-2 r--p")
