"""Who may move while others do: nobody is granted memory that another one is on the way to take."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.daemon.suspend import suspender, swap
from nvc.daemon.suspend.calls import Outcome
from nvc.daemon.suspend.room import GPU_SPARE, Refusal
from nvc.daemon.suspend.suspender import Suspender
from nvc.model.slices import layout, quota
from nvc.model.slices.isolation import MPS
from nvc.model.slices.ledger import Account
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
            (swap, "host_refusal", lambda *saved: NONE if sum(map(total, saved)) > self.host else None),
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
    return SimpleNamespace(key=key, pid=ord(key), start=1, inside=7, uuid="GPU-a", used=10 * GIB)


def test_two_leave_at_once_where_the_host_has_room_for_both(world: World) -> None:
    world.accountant.users = [user("a"), user("b")]
    for key in "ab":
        world.one.ask(key, True, 0)
    world.one.told(0)
    assert sorted(world.one.jobs) == ["a", "b"]


@pytest.mark.parametrize("field", ["isolation", "server"])
def test_clients_of_an_mps_server_stay(world: World, field: str) -> None:
    """Of a server of their own, or of one that slices share."""
    world.accountant.users = [user("a")]
    setattr(world.one.slices.by_key["a"].entry, field, MPS)
    world.one.ask("a", True, 0)
    why = world.one.state_of("a")[1]
    assert not world.one._waiting and why is not None and "clients of an MPS server" in why.cause


def test_what_nobody_tells_moves_nothing(world: World) -> None:
    """The process that asks NVML hangs, or was killed."""
    world.accountant.users = [user("a")]
    world.one.ask("a", True, 0)
    for now in (module.ANSWER, module.ANSWER + 1):
        assert world.one.state_of("a")[0] == SUSPENDING
        world.one.second(now)
    state, why = world.one.state_of("a")
    assert state == "running" and not world.one.jobs and why is not None and "NVML does not tell" in why.cause


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("why", ["the driver does not answer", "no process can be made: Cannot allocate memory"])
def test_without_a_process_that_calls_nothing_moves(
    world: World, monkeypatch: pytest.MonkeyPatch, leaves: bool, why: str
) -> None:
    """As too many of them hang, or the host has no room for one."""
    if "process" in why:
        monkeypatch.setattr(module.worker, "start", fails)
    else:
        monkeypatch.setattr(module.os, "waitpid", lambda *_: (0, 0))
        world.one._unreaped = [1] * module.HANG_MAX
    if leaves:
        world.accountant.users = [user("a")]
    else:
        world.one.records["a"] = Suspension("a", SUSPENDED, 0, (Saved(ord("a"), 1, "GPU-a", 10 * GIB),))
    world.one.ask("a", leaves, 0)
    world.one.told(0)
    state, refusal = world.one.state_of("a")
    assert state == ("running" if leaves else SUSPENDED) and refusal is not None and refusal.cause == why
    assert not world.one.jobs and sorted(world.one.records) == ["a"] * (not leaves)


def fails(*_: Any) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


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


def account(**values: Any) -> Account:
    return Account(0, 7, "", (0,), 0, (0,), swapped=1, **values)


@pytest.mark.parametrize("comes", [True, False])
def test_slices_that_run_give_memory_of_the_host_back(
    world: World, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """They are asked once; one that leaves waits for that, for a while."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(quota, "ask_to_move", lambda *words: asked.append(words))
    world.accountant.users, world.host = [user("a")], 5 * GIB
    world.accountant.ledgers.accounts["b"] = (account(staged=GIB),)
    world.one.slices.by_key["b"].quota = 9
    world.one.ask("a", True, 0)
    for now in range(3):
        world.one.told(now)
        assert world.one.state_of("a") == (SUSPENDING, None) and asked == [(9, layout.SWAP_FREE)]
    if comes:
        world.accountant.ledgers.accounts["b"], world.host = (account(),), 20 * GIB
    world.one.told(3 if comes else swap.GIVEN_BACK)
    assert list(world.one.jobs) == ["a"] * comes and world.one.state_of("a")[1] == (None if comes else NONE)
    assert len(asked) == 1


@pytest.fixture
def asked(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is asked of slices, of which b keeps 4 GiB of the host's memory, and says more."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(quota, "ask_to_move", lambda *words: found.append(words))
    monkeypatch.setattr(swap, "resident", lambda _: 4 * GIB)
    monkeypatch.setattr(swap, "is_here", lambda *_: True)
    world.accountant.users = [user("a"), user("b")]
    world.accountant.ledgers.accounts["b"] = (account(staged=1 << 60),)
    world.one.slices.by_key["b"].quota = 9
    return found


def test_all_that_leave_stay_within_an_operator_s_bound(world: World, asked: list[tuple[int, int]]) -> None:
    """What others keep is asked for where that is enough; what is away is nobody's to take."""
    for size, jobs in ((9, []), (10, []), (14, ["a"])):
        world.one.host.size = size * GIB
        world.one.ask("a", True, 0)
        world.one.told(0)
        assert list(world.one.jobs) == jobs and asked == [(9, layout.SWAP_FREE)] * (size > 9)
        why = world.one.state_of("a")[1]
        if size == 9:
            assert why is not None and "9 GiB of 9 GiB are left" in why.cause
    world.one.host.size = 19 * GIB
    for key in ("b", "b"):
        world.one.ask(key, True, 0)
        world.one.told(0)
        why = world.one.state_of("b")[1]
        assert why is not None and why.path == "swap-size" and "5 GiB of 19 GiB are left" in why.cause, why
    world.end("a", "running")
    world.one.ask("b", True, 0)
    world.one.told(0)
    assert list(world.one.jobs) == ["b"]


def test_a_bound_that_is_lowered_ends_nobody(world: World, asked: list[tuple[int, int]]) -> None:
    """What is kept is given back, and what is away comes back when it is asked to."""
    world.one.records["a"] = Suspension("a", SUSPENDED, 0, (Saved(ord("a"), 1, "GPU-a", 10 * GIB),))
    for size in (0, 14 * GIB):
        world.one.host.size = size
        world.one.second(0)
        assert not asked and world.one.host.document() == {"size": size or None, "used": 14 * GIB, "kept": 4 * GIB}
    world.one.host.size = 13 * GIB
    for _ in range(2):
        world.one.second(0)
        assert asked == [(9, layout.SWAP_FREE)]
    world.accountant.users = []
    world.one.ask("a", False, 0)
    world.one.told(0)
    assert list(world.one.jobs) == ["a"]


def test_what_is_kept_of_the_host_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it asked back while data are in it."""
    monkeypatch.setattr(swap, "_inside", lambda pid: pid)
    monkeypatch.setattr(swap, "resident", lambda _: 9 * GIB)
    slices: Any = dict.fromkeys("ab", SimpleNamespace(quota=9))
    shown = [Saved(7, 1, "GPU-a", 10 * GIB), Saved(8, 1, "GPU-a", GIB)]
    for movable, staged, taken in ((8, 0, 8), (8, 3, 5), (8, 9, 0), (10, 1 << 20, 1)):
        kept = account(movable=movable * GIB, staged=staged * GIB)
        saved = shown[0].replace(stays=(10 - movable) * GIB)
        assert swap.planned(shown, [kept]) == ((saved,), (shown[0].replace(bytes=taken * GIB),))
        accounts = {"a": [kept, kept.replace(away=True)], "b": [kept.replace(away=True)]}
        assert swap.keepers(slices, accounts, set()) == dict.fromkeys("a" * bool(staged), 9)
        assert swap.keepers(slices, accounts, {"a"}) == {}


@pytest.mark.parametrize("used", [2 * GIB + GPU_SPARE, 2 * GIB + GPU_SPARE + 1])
def test_one_whose_memory_has_not_left_by_nvml_is_found(used: int) -> None:
    """With the second answer, as the first may be of before."""
    proof, seen = swap.Proof(), [user("a")]
    proof.left(Suspension("a", SUSPENDED, 0, (Saved(ord("a"), 1, "GPU-a", 10 * GIB, stays=2 * GIB),)))
    assert proof.lies(seen) == {}
    seen[0].used = used
    assert list(proof.lies(seen)) == ["a"] * (used > 2 * GIB + GPU_SPARE) and proof.lies([user("a")]) == {}


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
