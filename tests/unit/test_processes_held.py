"""How long processes that do not answer are waited for: in virtual time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from nvc.kernel import processes
from nvc.kernel.processes import AGAIN, LEAST, PATIENCE, SELDOM, Looks


class Host:
    """Processes, some of which do not answer."""

    def __init__(self) -> None:
        self.now, self.waited, self.asked = 0.0, 0.0, 0
        self.silent: set[str] = set()
        self.identities: dict[int, int] = {}
        self.looks = Looks(self.ask, lambda: self.now)

    def ask(self, paths: list[str], flags: int, size: int, patience: float) -> list[bytes | int]:
        self.asked += 1
        for number, path in enumerate(paths):
            if path.split("/")[2] in self.silent:
                self.now += patience
                self.waited += patience
                return [b"found"] * number
        return [b"found"] * len(paths)

    def identity(self, pid: int) -> int:
        found = self.identities.setdefault(pid, pid)
        if not found:
            raise ProcessLookupError(3, "No such process")
        return found

    def read(self, pid: int) -> bool:
        """Whether it answers."""
        try:
            return self.looks.read(f"/proc/{pid}/stat", 100) == b"found"
        except TimeoutError as error:
            assert error.filename == f"/proc/{pid}/stat" and "End that one's server" in error.strerror
            return False


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    made = Host()
    monkeypatch.setattr(processes, "identity", made.identity)
    yield made


def test_one_is_waited_for_once(host: Host) -> None:
    host.silent = {"7"}
    assert [host.read(7) for _ in range(1000)] == [False] * 1000 and host.read(8)
    assert (host.waited, host.asked) == (PATIENCE, 2)


def test_it_is_asked_again_seldom_and_shortly(host: Host) -> None:
    host.silent = {"7"}
    for second in range(100_000):
        host.now = max(host.now, second)
        host.read(7)
    assert host.waited <= PATIENCE + LEAST * (10 + 100_000 / SELDOM)
    host.silent = set()
    host.now += SELDOM
    assert host.read(7) and host.read(7)
    host.silent = {"7"}
    host.waited = 0
    assert not host.read(7) and host.waited == PATIENCE


def test_a_thousand_of_them(host: Host) -> None:
    host.silent = {str(pid) for pid in range(1, 1001)}
    assert [host.read(pid) for pid in range(1, 1001)] == [False] * 1000
    assert host.waited < 2 * PATIENCE + 1000 * LEAST


def test_another_one_with_its_number(host: Host) -> None:
    host.silent = {"7"}
    assert not host.read(7)
    host.silent = set()
    host.identities[7] = 8
    assert host.read(7)
    host.silent = {"9"}
    assert not host.read(9)
    assert host.waited == PATIENCE + PATIENCE / 2
    host.silent = {"10"}  # the first one has ended: it is not counted any more
    host.identities[9] = 0
    host.waited = 0
    host.now += AGAIN
    assert not host.read(10)
    host.silent = {"11"}
    assert not host.read(11) and host.waited == PATIENCE


def test_signals_do_not_disturb_the_question_whether_a_process_is_over() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-5, 2e-5)
        assert not any(processes.is_over(os.getpid()) for _ in range(1500))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
