"""What root asks nvcd, and what becomes of the question where something else sits at its socket."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from support import run
from support.nvcd import Place, ask

from nvc.base import rundir
from nvc.base.errors import InitializationError
from nvc.slices.client import nvcd

Talk = Callable[[socket.socket, bytes], None]


@pytest.fixture
def talks() -> Iterator[Callable[[str, Talk], None]]:
    """Listens below a directory in nvcd's place, and does with each who connects what it is told."""
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def listen(directory: str, talk: Talk) -> None:
        os.makedirs(f"{directory}/nvcd", mode=0o700, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"{directory}/nvcd/nvcd.sock")
        listener.listen(8)
        opened.append(listener)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        talk(connection, connection.recv(4096))
                    except OSError:
                        pass

        threads.append(threading.Thread(target=serve))
        threads[-1].start()

    yield listen
    for listener in opened:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join()


@pytest.fixture
def here(scratch: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory in the place of /run/nvc."""
    os.mkdir(f"{scratch}/run", 0o700)
    monkeypatch.setattr(rundir, "SYSTEM", f"{scratch}/run")
    return f"{scratch}/run"


def endless(connection: socket.socket, _: bytes) -> None:
    """Far beyond the bound, but not so far that who has none has no memory left."""
    connection.sendall(b'{"a": "' + b"x" * (3 * nvcd.ANSWER_MAX) + b'"}')


def trickle(connection: socket.socket, _: bytes) -> None:
    """For a minute; each byte in time."""
    connection.sendall(b'{"a": "')
    for _ in range(1200):
        connection.send(b"x")
        select.select([], [], [], 0.05)


def test_state_of_the_one_that_runs(place: Place) -> None:
    words = place.enter(f"{place.stage}/bin/nvcd", "--state")
    done = run(*words, check=False)
    cause = "ask nvcd: /run/nvc/nvcd/nvcd.sock: nvcd is not running; start nvcd: "
    assert done.returncode == 1 and cause in done.stderr
    place.start()
    assert f'"version": "{ask(place)["version"]}"' in run(*words).stdout
    more = run(*words, "--wait", check=False)
    assert more.returncode == 1 and "--state: cannot be combined" in more.stderr
    other = run("setpriv", "--reuid=65534", "--clear-groups", *words[-2:], check=False)
    assert other.returncode == 1 and "permission error: ask nvcd: only root can" in other.stderr


def test_an_answer_without_end(place: Place, talks: Callable[[str, Talk], None]) -> None:
    talks(place.run, endless)
    done = run(*place.enter(f"{place.stage}/bin/nvcd", "--state"), check=False)
    assert done.returncode == 1 and f"its answer: larger than {nvcd.ANSWER_MAX} bytes" in done.stderr


def test_an_answer_that_takes_its_time(here: str, talks: Callable[[str, Talk], None]) -> None:
    talks(here, trickle)
    with pytest.raises(InitializationError, match="timed out"):
        nvcd.ask("state", 0.3)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(b"", "its answer: empty"), (b"[1]\n", "its answer is not an object"), (b'{"a":', "its answer: ")],
)
def test_an_answer_that_is_none(
    here: str, talks: Callable[[str, Talk], None], answer: bytes, cause: str
) -> None:
    talks(here, lambda connection, _: connection.sendall(answer))
    with pytest.raises(InitializationError, match=cause):
        nvcd.ask("state", 20)


def test_words_arrive_as_they_are(here: str, talks: Callable[[str, Talk], None]) -> None:
    """None of them can add another one."""
    heard = []

    def note(connection: socket.socket, question: bytes) -> None:
        heard.append(question)
        connection.sendall(b'{"a": 1}\n')

    talks(here, note)
    assert nvcd.ask("mps-start", 20, key='a", "percent": "9', percent=5) == {"a": 1}
    assert heard == [b'{"ask": "mps-start", "key": "a\\", \\"percent\\": \\"9", "percent": 5}\n']
