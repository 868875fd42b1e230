"""Who had a GPU while none of his channels was known there."""

from __future__ import annotations

from nvc.daemon.keeper.device import DeviceTime
from nvc.daemon.keeper.wire import Account
from nvc.daemon.time.hidden import Hidden

MS = 1_000_000


def account(had: dict[int, int], began: int = 1, logged: bool = True) -> Account:
    pids = tuple((pid, amount * MS, 1) for pid, amount in had.items())
    return Account(began, 0, 0, (DeviceTime("GPU-x", 0, logged, pids, (), 0, 0, 0, (), ""),))


def taken(hidden: Hidden, had: dict[int, int], *known: int, **more: int) -> list[tuple[str, int, int, int]]:
    hidden.touch(known)
    return hidden.take(account(had, **more))


def test_what_it_had_while_nothing_was_known_is_found_each_time() -> None:
    hidden = Hidden(10 * MS)
    assert taken(hidden, {7: 100, 8: 100}, 7, 8) == []
    assert taken(hidden, {7: 150, 8: 150}, 8) == [("GPU-x", 7, 50 * MS, 1)]
    assert taken(hidden, {7: 150, 8: 200}, 8) == []
    assert taken(hidden, {7: 170, 8: 250}, 8) == [("GPU-x", 7, 20 * MS, 2)]


def test_what_came_or_went_in_between_and_little_is_nothing() -> None:
    hidden = Hidden(10 * MS)
    assert taken(hidden, {7: 100}) == [], "it is new to us"
    assert taken(hidden, {7: 200}, 7) == [], "a context came and went"
    assert taken(hidden, {7: 209}) == []


def test_another_timekeeper_begins_anew_and_without_a_log_nobody_is_found() -> None:
    hidden = Hidden(10 * MS)
    assert taken(hidden, {7: 100}) == []
    assert taken(hidden, {7: 300}, began=2) == []
    assert taken(hidden, {7: 400}, began=2) == [("GPU-x", 7, 100 * MS, 1)]
    assert hidden.take(account({7: 500}, 2, logged=False)) == []
    assert taken(hidden, {7: 600}, began=2) == [], "what it had is not known for the time in between"
