"""Who may move while others do: nobody is granted memory that another one is on the way to take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nvc.daemon.suspend import suspender
from nvc.daemon.suspend.calls import Outcome
from nvc.daemon.suspend.room import Refusal
from nvc.daemon.suspend.suspender import Suspender
from nvc.model.slices.suspension import SUSPENDED, SUSPENDING, Saved, Suspension

GIB = 1 << 30
module: Any = suspender
NONE = Refusal("/proc/meminfo", "no room", "")


class World:
    """A GPU of 16 GiB with slices of 10 GiB, of which one process each is what NVML shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slices: Any = SimpleNamespace(by_key={}, whose=str)
        gpu = SimpleNamespace(uuid="GPU-a", memory=16 * GIB, used=0)
        ledgers = SimpleNamespace(accounts={}, descriptor=lambda _: -1)
        seen: Any = SimpleNamespace(users=[], devices=[gpu], ledgers=ledgers)
        self.accountant = seen
        nothing: Any = SimpleNamespace(add=lambda *_: None, remove=lambda *_: None)
        for key in "ab":
            entry = SimpleNamespace(isolation="", server="", suspend_hook="", resume_hook="")
            known = SimpleNamespace(alive=True, entry=entry, devices=(), set_suspended=lambda _: None, swaps=False)
            slices.by_key[key] = known
        self.one = Suspender(nothing, nothing, slices, seen, lambda _: None, lambda: nothing, print)
        self.host = 20 * GIB
        for place, name, value in (
            (module.worker, "start", lambda *_: (0, SimpleNamespace(fileno=lambda: 0))),
            (module.helper, "end", lambda *_: None),
            (module.suspension, "write", lambda _: None),
            (module.suspension, "forget", lambda _: None),
            (module, "stopped_refusal", lambda _: None),
            (module, "is_here", lambda *_: True),
            (module, "host_refusal", lambda *saved: NONE if sum(map(total, saved)) > self.host else None),
            (module.os, "waitpid", lambda *_: (1, 0)),
        ):
            monkeypatch.setattr(place, name, value)

    def end(self, key: str, state: str) -> None:
        self.one._ended(self.one.jobs[key], Outcome(state), 1)


def total(saved: Any) -> int:
    return sum(one.bytes for one in saved)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def user(key: str) -> Any:
    return SimpleNamespace(key=key, pid=ord(key), start=1, uuid="GPU-a", used=10 * GIB)


def test_two_leave_at_once_where_the_host_has_room_for_both(world: World) -> None:
    world.accountant.users = [user("a"), user("b")]
    for key in "ab":
        world.one.ask(key, True, 0)
    world.one.told(0)
    assert sorted(world.one.jobs) == ["a", "b"]


def test_else_one_waits_until_the_other_has_left(world: World) -> None:
    world.accountant.users, world.host = [user("a"), user("b")], 15 * GIB
    for key in "ab":
        world.one.ask(key, True, 0)
    for now in range(3):
        world.one.told(now * module.ANSWER)
        world.one.second(now * module.ANSWER)
        assert list(world.one.jobs) == ["a"] and world.one.state_of("b") == (SUSPENDING, None)
    world.end("a", SUSPENDED)
    world.one.told(0)
    assert list(world.one.jobs) == ["b"]


def test_what_nvml_tells_may_be_of_before_one_was_back(world: World) -> None:
    """The room that it shows is taken."""
    for key in "ab":
        saved = Saved(ord(key), 1, "GPU-a", 10 * GIB)
        world.one.records[key] = Suspension(key, SUSPENDED, 0, (saved,))
    world.one.ask("a", False, 0)
    world.one.told(0)
    world.one.note()
    world.end("a", "running")
    world.one.ask("b", False, 0)
    world.one.told(0)
    assert not world.one.jobs and world.one.state_of("b")[0] == SUSPENDED
    world.one.note()
    world.one.ask("b", False, 0)
    world.one.told(0)
    assert list(world.one.jobs) == ["b"], "it has ended by what NVML tells now"
