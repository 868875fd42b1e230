"""Which slices are suspended as they do nothing, and which come back, in virtual time."""

from __future__ import annotations

import random

from nvc.daemon.suspend.idle import (
    AGAIN,
    ANSWERED,
    LEAVES,
    RESTS,
    RETURNS,
    SECOND,
    STAY,
    STAY_LEAST,
    Idle,
    Tenant,
)  # fmt: skip

IDLE = 10 * SECOND
HALF = SECOND // 2
HELD = 8  # of what each has of its device


def tenant(key: str = "a", work: int = 0, suspended: bool = False, **more: object) -> Tenant:
    return Tenant(key, ("GPU-1",), 1, IDLE, work, suspended, held=(HELD,)).replace(**more)


def asking(lacks: int, key: str = "a", **more: object) -> Tenant:
    """One that is there, and waits for an allocation."""
    return tenant(key, wanted=True, room=not lacks, place="GPU-1", lacks=lacks, idle_ns=1 << 62).replace(**more)


def test_who_cannot_be_suspended_is_tried_again_after_a_minute() -> None:
    idle = Idle()
    found = [now for now in range(0, 200 * SECOND, HALF) if idle.plan((tenant(),), now)]
    assert found == [IDLE, IDLE + 60 * SECOND, IDLE + 120 * SECOND, IDLE + 180 * SECOND]


def test_who_cannot_come_back_is_tried_again_and_holds_nobody_up() -> None:
    """A tenant can see to it: a frozen process is not given its memory back."""
    idle = Idle()
    frozen = tenant(suspended=True, wanted=True)
    found = {now: idle.plan((frozen,), now) for now in range(HALF, 12 * SECOND, HALF)}
    assert [now for now, steps in found.items() if steps] == [HALF, HALF + AGAIN, HALF + 2 * AGAIN]
    other = tenant("b", suspended=True, wanted=True)
    assert idle.plan((frozen, other), 12 * SECOND) == (("b", RETURNS),)


def test_who_waits_for_what_nobody_can_give_holds_nobody_up() -> None:
    idle = Idle()
    large, small = tenant(suspended=True, wanted=True, room=False), tenant("b", suspended=True, wanted=True)
    stays = tenant("c", held=())
    for now in range(0, 9 * SECOND, HALF):
        assert idle.plan((large, stays), now) == ()
    assert idle.plan((large, stays, small), 9 * SECOND) == (("b", RETURNS),)
    leaves = tenant("d", 9 * SECOND)
    assert Idle().plan((large, leaves, small.replace(weight=1)), 0) == (), "it waits for one that may leave soon"


def test_the_one_that_did_nothing_for_longest_makes_room() -> None:
    idle = Idle()
    work = {"b": 3, "c": 2, "d": 90}  # seconds until which each works
    for now in range(0, 9 * SECOND, HALF):
        idle.plan(tuple(tenant(key, min(now, end * SECOND)) for key, end in work.items()), now)
    wanted = tenant(suspended=True, wanted=True, room=False)
    others = tuple(tenant(key, min(9, end) * SECOND) for key, end in work.items())
    assert idle.plan((wanted, *others), 9 * SECOND) == (("c", LEAVES),)


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
        for key, what in idle.plan(known, now):
            leave = what in (RESTS, LEAVES)
            assert key not in moving and leave == (key not in suspended)
            moving[key] = now + took[key] * 1_000_000, leave
            if leave:
                suspended.add(key)
            moves += 1
    shares = {key: time / (600 * SECOND) for key, time in here.items()}
    assert min(shares.values()) > 0.5 and sum(shares.values()) > 2 - 2 / STAY, shares
    assert moves > 20


def test_who_could_not_be_suspended_is_not_counted_on() -> None:
    idle = Idle()
    found = [now for now in range(0, 20 * SECOND, HALF) if idle.plan((tenant("b"),), now)]
    assert found == [IDLE]
    assert idle.plan((asking(1), tenant("b")), 20 * SECOND) == (("a", ANSWERED),)


def test_who_works_stays_for_a_while_whatever_is_asked() -> None:
    idle = Idle()
    found = [(now, idle.plan((asking(1), tenant("b", now)), now)) for now in range(0, 9 * SECOND, HALF)]
    assert next(step for step in found if step[1]) == (STAY_LEAST, (("b", LEAVES),))


def test_one_slice_has_others_moved_now_and_then() -> None:
    """A tenant that asks again and again, as others come back."""
    idle, moved, away = Idle(), [], 0
    for now in range(0, 30 * SECOND, HALF):
        steps = idle.plan((asking(0 if away else 1), tenant("b", suspended=bool(away), idle_ns=1 << 62)), now)
        if ("b", LEAVES) in steps:
            moved.append(now)
            away = now
        elif ("a", ANSWERED) in steps:
            away = 0
    assert len(moved) > 3 and all(later - one >= AGAIN for one, later in zip(moved, moved[1:])), moved


def test_of_two_that_wait_for_each_other_one_leaves() -> None:
    idle = Idle()
    idle.plan((tenant(), tenant("b")), 0)
    assert not idle.plan((asking(5), tenant("b")), HALF)
    assert idle.plan((asking(5), asking(5, "b")), 2 * SECOND) == (("b", LEAVES),)
    away = tenant("b", suspended=True, wanted=True, room=False)
    assert idle.plan((asking(0), away), 3 * SECOND) == (("a", ANSWERED),)
    found = [now for now in range(4 * SECOND, 99 * SECOND, HALF) if idle.plan((tenant("a", now), away), now)]
    assert found[0] == STAY * SECOND, "ten times as long as moving took; then it has its turn"
