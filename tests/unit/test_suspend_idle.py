"""Which slices are suspended as they do nothing, and which come back, in virtual time."""

from __future__ import annotations

import random

from nvc.daemon.suspend.idle import REST, SECOND, STAY, STAY_LEAST, Idle, Tenant

IDLE = 10 * SECOND
HALF = SECOND // 2


def tenant(key: str = "a", work: int = 0, suspended: bool = False, **more: object) -> Tenant:
    return Tenant(key, ("GPU-1",), 1, IDLE, work, suspended).replace(**more)


def test_who_does_nothing_is_suspended_in_time_and_once() -> None:
    idle = Idle()
    found = {now: idle.plan((tenant(work=min(now, 3 * SECOND)),), now) for now in range(0, 40 * SECOND, HALF)}
    assert {now: steps for now, steps in found.items() if steps} == {3 * SECOND + IDLE: (("a", True),)}


def test_who_cannot_be_suspended_is_tried_again_after_a_minute() -> None:
    idle = Idle()
    found = [now for now in range(0, 200 * SECOND, HALF) if idle.plan((tenant(),), now)]
    assert found == [IDLE, IDLE + 60 * SECOND, IDLE + 120 * SECOND, IDLE + 180 * SECOND]


def test_who_is_wanted_comes_back_at_once() -> None:
    idle = Idle()
    assert not idle.plan((tenant(suspended=True),), 0)
    assert idle.plan((tenant(suspended=True, wanted=True),), HALF) == (("a", False),)
    assert not idle.plan((tenant(suspended=True, wanted=True, moves=True),), 2 * HALF)


def test_the_one_that_did_nothing_for_longest_makes_room() -> None:
    idle = Idle()
    work = {"b": 3, "c": 2, "d": 90}  # seconds until which each works
    for now in range(0, 9 * SECOND, HALF):
        idle.plan(tuple(tenant(key, min(now, end * SECOND)) for key, end in work.items()), now)
    wanted = tenant(suspended=True, wanted=True, room=False)
    others = tuple(tenant(key, min(9, end) * SECOND) for key, end in work.items())
    assert idle.plan((wanted, *others), 9 * SECOND) == (("c", True),)


def test_who_works_stays_for_a_while() -> None:
    idle = Idle()
    wanted = tenant(suspended=True, wanted=True, room=False)
    found = [now for now in range(0, 9 * SECOND, HALF) if idle.plan((wanted, tenant("b", now)), now)]
    assert found == [STAY_LEAST]


def test_who_does_nothing_makes_room_soon() -> None:
    idle = Idle()
    wanted = tenant(suspended=True, wanted=True, room=False)
    assert [now for now in range(0, 5 * SECOND, HALF) if idle.plan((wanted, tenant("b")), now)] == [REST]


def test_on_another_gpu_nobody_makes_room() -> None:
    idle = Idle()
    other = tenant("b", devices=("GPU-2",), idle_ns=1 << 62)
    wanted = tenant(suspended=True, wanted=True, room=False)
    assert not [now for now in range(0, 99 * SECOND, HALF) if idle.plan((wanted, other), now)]


def test_all_that_always_work_take_turns() -> None:
    """Three slices, of which two fit: each has about two thirds of the time, and moving takes at most a tenth."""
    rng = random.Random(7)
    idle, took = Idle(), {"a": 700, "b": 1100, "c": 400}  # milliseconds to move
    suspended, moving = {"c"}, dict[str, tuple[int, bool]]()
    here = dict.fromkeys(took, 0)
    moves = 0
    step = 50_000_000
    for now in range(0, 600 * SECOND, step):
        for key, (end, leave) in list(moving.items()):
            if now >= end:
                del moving[key]
                if not leave:
                    suspended.discard(key)
        for key in took:
            here[key] += step if key not in suspended else 0
        if now % HALF:
            continue
        room = len(set(took) - suspended) < 2
        known = tuple(
            tenant(key, here[key], key in suspended, wanted=key in suspended, room=room, moves=key in moving)
            for key in rng.sample(sorted(took), 3)
        )
        for key, leave in idle.plan(known, now):
            assert key not in moving and leave == (key not in suspended)
            moving[key] = now + took[key] * 1_000_000, leave
            if leave:
                suspended.add(key)
            moves += 1
    shares = {key: time / (600 * SECOND) for key, time in here.items()}
    assert min(shares.values()) > 0.5 and sum(shares.values()) > 2 - 2 / STAY, shares
    assert moves > 20
