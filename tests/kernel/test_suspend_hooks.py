"""What programs are told before their slice is suspended, and once it runs again."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support import until
from support.nvcd import Place, ask, eventually
from support.nvcd_programs import started
from support.suspended import Holder, cli, shown

pytestmark = pytest.mark.driver(gpus=1)
NOBODY = "Uid:\t65534\t65534\t65534\t65534\n"


class Listener(Holder):
    """One that writes what it is told into a file."""

    def __init__(
        self, place: Place, launcher: str, driver: str, before: str, after: str, kind: str = "plain"
    ) -> None:
        self.place, self.launcher = place, launcher
        self.file = os.path.join(place.scratch, "told")
        options = (f"--suspend-hook={before}", f"--resume-hook={after}")
        super().__init__(place, launcher, driver, 100, kind, told=self.file, options=options)
        eventually(place, lambda found: found["memory"] and found["memory"][0]["pids"])

    def told(self) -> list[str]:
        if not os.path.exists(self.file):
            return []
        with open(self.file, encoding="ascii") as file:
            return file.read().splitlines()

    def cycle(self) -> str:
        """Suspend and resume it; what nvcd said."""
        for word in ("suspend", "resume"):
            cli(self.place, self.launcher, word, str(self.tenant))
        assert self.tells() and self.place.daemon is not None
        return self.place.daemon.said()


@pytest.fixture
def listeners(place: Place, driver: str) -> Iterator[list[Listener]]:
    started(place, driver)
    programs: list[Listener] = []
    yield programs
    for one in programs:
        one.stop()


def test_a_request(place: Place, driver: str, launcher: str, listeners: list[Listener]) -> None:
    """In its own network namespace; nvcd waits for the answer."""
    one = Listener(place, launcher, driver, "http:8000/sleep?level=1", "http:8000/wake_up")
    listeners.append(one)
    cli(place, launcher, "suspend", str(one.tenant))
    assert one.told() == ["POST /sleep?level=1"]
    cli(place, launcher, "resume", str(one.tenant))
    assert one.told() == ["POST /sleep?level=1", "POST /wake_up"]
    assert one.tells() and place.daemon is not None and "hook" not in place.daemon.said()
    assert shown(place, launcher, str(one.tenant))["hooks"] == {
        "suspend": "http:8000/sleep?level=1", "resume": "http:8000/wake_up",
    }  # fmt: skip


def test_a_signal(place: Place, driver: str, launcher: str, listeners: list[Listener]) -> None:
    """Whom it would end is not sent it."""
    one = Listener(place, launcher, driver, "signal:USR1", "signal:USR2")
    listeners.append(one)
    assert "hook signal:USR2: no process has a handler for it" in one.cycle()
    assert one.told() == ["USR1"]


def test_who_does_not_listen_is_suspended_all_the_same(
    place: Place, driver: str, launcher: str, listeners: list[Listener]
) -> None:
    one = Listener(place, launcher, driver, "http:8001/", "http:8000/fail")
    listeners.append(one)
    assert "settings   suspend-hook http:8001/\n" in cli(place, launcher, "show", str(one.tenant)).stdout
    said = one.cycle()
    assert "hook http:8001/: connection refused" in said and "hook http:8000/fail: the answer is 500" in said
    assert shown(place, launcher, str(one.tenant))["suspensions"]["hookFailures"] == 2
    cli(place, launcher, "set", str(one.tenant), "--suspend-hook=off", "--resume-hook=off")
    before = one.told()
    one.cycle()
    assert one.told() == before


def test_who_makes_the_request_has_no_rights(
    place: Place, driver: str, launcher: str, listeners: list[Listener]
) -> None:
    one = Listener(place, launcher, driver, "http:8000/wait", "off")
    listeners.append(one)
    os.mkfifo(f"{one.file}.go")
    key = shown(place, launcher, str(one.tenant))["key"]
    assert ask(place, "suspend", key=key)["state"] == "suspending"
    until(lambda: one.told())
    assert place.daemon is not None
    (helper,) = [pid for pid in place.daemon.family() if words(pid) == "nvcd-hook"]
    with open(f"/proc/{helper}/task/{helper}/children", encoding="ascii") as file:
        (child,) = file.read().split()
    with open(f"/proc/{child}/status", encoding="ascii") as file:
        status = file.read()
    for line in (NOBODY, "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "NoNewPrivs:\t1\n"):
        assert line in status
    assert os.stat(f"/proc/{child}/ns/net").st_ino == os.stat(f"/proc/{one.tenant}/ns/net").st_ino
    open(f"{one.file}.go", "w", encoding="ascii").close()
    eventually(place, lambda found: found["slices"][0]["suspension"] == "suspended")


def words(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        return file.read().partition("\0")[0]


def test_a_suspension_that_is_refused_is_taken_back(
    place: Place, driver: str, launcher: str, listeners: list[Listener]
) -> None:
    """Programs that got ready for it are told that they run."""
    one = Listener(place, launcher, driver, "http:8000/sleep", "http:8000/wake_up", "managed")
    listeners.append(one)
    done = cli(place, launcher, "suspend", str(one.tenant), check=False)
    assert done.returncode == 1
    assert one.told() == ["POST /sleep", "POST /wake_up"]
