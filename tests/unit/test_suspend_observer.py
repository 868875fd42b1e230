"""Whose threads wait in the driver, looked at by a process that may hang or end: in virtual time."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvc.daemon.suspend.observer import AGAIN, HANG_MAX, PATIENCE, QUIET, WANTED, Observer, seen
from nvc.daemon.suspend.threads import Threads


class World:
    """A loop that is called by hand, and processes that answer nothing by themselves."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.timed: list[tuple[int, Callable[[int], None]]] = []
        self.ends: list[socket.socket] = []
        self.pids: list[int] = []
        loop: Any = self
        self.observer = Observer(loop, self.begin)

    def add(self, fd: int, handler: Callable[[int], None]) -> None:
        self.handlers[fd] = handler

    def remove(self, fd: int) -> None:
        del self.handlers[fd]

    def once(self, due: int, work: Callable[[int], None]) -> None:
        self.timed.append((due, work))

    def begin(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        self.ends.append(theirs)
        self.pids.append(pid)
        return pid, ours

    def asked(self) -> str:
        """The question that the last process has got."""
        self.ends[-1].setblocking(False)
        return self.ends[-1].recv(1000).decode()

    def answer(self, said: str) -> None:
        self.ends[-1].send(said.encode())
        self.ready()

    def ready(self) -> None:
        for handler in tuple(self.handlers.values()):
            handler(0)

    def at(self, now: int) -> None:
        for due, work in [each for each in self.timed if now >= each[0]]:
            self.timed.remove((due, work))
            work(now)


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    yield one
    for end in one.ends:
        end.close()
    if one.observer._channel is not None:
        one.observer._channel.close()
    for pid in one.pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def test_one_slice_after_another(world: World) -> None:
    slices = {"a": ((7, 8), True), "b": ((9,), False)}
    world.observer.look(slices, 0)
    assert world.asked() == "7 8" and world.observer.answer("a") == ""
    world.answer(WANTED)
    assert world.asked() == "9"
    world.answer(QUIET)
    assert (world.observer.answer("a"), world.observer.answer("b")) == (WANTED, QUIET)
    world.observer.look(slices, 1)  # only who is suspended is looked at again
    assert world.asked() == "7 8"
    world.answer(QUIET)
    with pytest.raises(BlockingIOError):
        world.asked()
    world.observer.look({"b": ((9,), True)}, 2)  # it is suspended now: what was seen before is nothing
    assert (world.observer.answer("a"), world.observer.answer("b")) == ("", "") and world.asked() == "9"
    assert len(world.pids) == 1


def test_who_holds_it_up_is_left_alone_for_a_while(world: World) -> None:
    slices = {"a": ((7,), True), "b": ((9,), True)}
    world.observer.look(slices, 0)
    assert world.asked() == "7"
    world.at(PATIENCE)
    assert "within 2 s" in world.observer.answer("a")
    assert len(world.pids) == 2 and world.asked() == "9"
    assert os.WIFSIGNALED(os.waitpid(world.pids[0], 0)[1])
    world.observer._unreaped.clear()
    world.answer(QUIET)
    world.observer.look(slices, PATIENCE + 1)
    assert world.asked() == "9", "the other is left alone"
    world.answer(QUIET)
    world.observer.look({"a": ((7, 8), True)}, PATIENCE + 2)
    assert "within 2 s" in world.observer.answer("a"), "whatever processes it has"
    with pytest.raises(BlockingIOError):
        world.asked()
    world.observer.look({"a": ((7, 8), True)}, PATIENCE + AGAIN)
    assert world.asked() == "7 8"


def test_no_more_processes_are_begun_than_may_hang(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may be in a read that does not end with it."""
    monkeypatch.setattr(os, "waitpid", lambda pid, options: (0, 0))
    slices = {str(number): ((number,), True) for number in range(HANG_MAX + 2)}
    world.observer.look(slices, 0)
    for number in range(1, 20):
        world.at(PATIENCE * number)
    assert len(world.pids) == HANG_MAX
    assert "hang" in world.observer.answer(str(HANG_MAX + 1))
    monkeypatch.undo()
    world.observer.look({"new": ((99,), True)}, PATIENCE * 100)
    assert len(world.pids) == HANG_MAX + 1, "they have ended after all"


def test_a_process_that_ends(world: World) -> None:
    world.observer.look({"a": ((7,), True)}, 0)
    world.ends[-1].shutdown(socket.SHUT_RDWR)
    world.ready()
    assert world.observer.answer("a") == "the process that looked at its threads has ended"
    world.observer.look({"a": ((7, 8), True)}, 1)
    assert len(world.pids) == 2 and world.asked() == "7 8"


def test_no_process_can_be_made(world: World) -> None:
    def fails() -> tuple[int, socket.socket]:
        raise OSError(11, "Resource temporarily unavailable")

    world.observer.begin = fails
    world.observer.look({"a": ((7,), True), "b": ((8,), False)}, 0)
    assert "Resource temporarily unavailable" in world.observer.answer("a")
    assert world.observer.answer("b")


class Hidden(Threads):
    """Where the kernel lets nobody look (yama/ptrace_scope 3)."""

    def _list(self, pid: int) -> list[int]:
        raise PermissionError(1, "Operation not permitted", f"{pid}/task/{pid}/syscall")


class Odd(Threads):
    """Something is read that nobody has thought of."""

    def _list(self, pid: int) -> list[int]:
        raise UnicodeError("odd")


def test_what_cannot_be_seen_is_said() -> None:
    assert seen(Threads(), [1 << 22]) == QUIET, "it has just ended"
    assert "7/task/7/syscall: the threads of its processes cannot be watched" in seen(Hidden(), [7])
    assert seen(Odd(), [7]) == "what its threads are at is not understood: odd"
