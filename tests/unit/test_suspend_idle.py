"""Which slices are suspended as they do nothing, and which come back, in virtual time."""

from __future__ import annotations

import random

from nvc.daemon.suspend.idle import (
    AGAIN,
    ANSWERED,
    LEAVES,
    RETURNS,
    SECOND,
    STAY,
    STAY_LEAST,
    Idle,
    Tenant,
)  # fmt: skip

IDLE = 10 * SECOND
HALF = SECOND // 2
HELD = 8  # of what each has of its device, or had
FULL, ROOM = {"GPU-1": 0}, {"GPU-1": HELD}  # what is free


def tenant(key: str = "a", work: int = 0, suspended: bool = False, **more: object) -> Tenant:
    return Tenant(key, ("GPU-1",), 1, IDLE, work, suspended, needs=(HELD,), held=(HELD,)).replace(**more)


def asking(needs: int, key: str = "a", **more: object) -> Tenant:
    """One that is there, and waits for an allocation."""
    return tenant(key, wanted=True, needs=(needs,), idle_ns=1 << 62).replace(**more)


def test_who_cannot_be_suspended_is_tried_again_after_a_minute() -> None:
    idle = Idle()
    found = [now for now in range(0, 200 * SECOND, HALF) if idle.plan((tenant(),), FULL, now)]
    assert found == [IDLE, IDLE + 60 * SECOND, IDLE + 120 * SECOND, IDLE + 180 * SECOND]


def test_who_cannot_come_back_is_tried_again_and_holds_nobody_up() -> None:
    """A tenant can see to it: a frozen process is not given its memory back."""
    idle = Idle()
    frozen = tenant(suspended=True, wanted=True)
    found = {now: idle.plan((frozen,), ROOM, now) for now in range(HALF, 12 * SECOND, HALF)}
    assert [now for now, steps in found.items() if steps] == [HALF, HALF + AGAIN, HALF + 2 * AGAIN]
    assert idle.seen["a"].out == 0, "that does not say how long moving takes"
    other, hangs = tenant("b", suspended=True, wanted=True), tenant("c", suspended=True, moves=True)
    large = tenant("d", suspended=True, wanted=True, needs=(2 * HELD,))
    assert idle.plan((large, frozen, other, hangs), ROOM, 12 * SECOND) == (("b", RETURNS),)


def test_who_waits_for_what_nobody_can_give_holds_nobody_up() -> None:
    idle = Idle()
    large, small = tenant(suspended=True, wanted=True, needs=(20,)), tenant("b", suspended=True, wanted=True)
    stays = tenant("c", held=())
    for now in range(0, 9 * SECOND, HALF):
        assert idle.plan((large, stays), ROOM, now) == ()
    assert idle.plan((large, stays, small), ROOM, 9 * SECOND) == (("b", RETURNS),)
    leaves = tenant("d", 9 * SECOND, held=(12,))
    assert Idle().plan((large, leaves, small), ROOM, 0) == (), "it waits for one that may leave soon"


def test_the_one_that_did_nothing_for_longest_makes_room() -> None:
    idle = Idle()
    work = {"b": 3, "c": 2, "d": 90}  # seconds until which each works
    for now in range(0, 9 * SECOND, HALF):
        idle.plan(tuple(tenant(key, min(now, end * SECOND)) for key, end in work.items()), FULL, now)
    wanted = tenant(suspended=True, wanted=True)
    others = tuple(tenant(key, min(9, end) * SECOND) for key, end in work.items())
    assert idle.plan((wanted, *others), FULL, 9 * SECOND) == (("c", LEAVES),)


class Machine:
    """A GPU with room for some of its tenants, each of which works for a while when asked, in virtual time."""

    def __init__(self, weights: dict[str, int], room: int, out: float, back: float) -> None:
        self.weights, self.room = weights, room
        self.took = {True: out, False: back}
        self.idle = Idle()
        self.now = 0
        self.here = set(sorted(weights)[:room])  # with those on their way there or back
        self.moving: dict[str, tuple[int, bool]] = {}  # until when, and whether they leave
        self.work = dict.fromkeys(weights, 0)  # that is left
        self.had = dict.fromkeys(weights, 0)
        self.asked: dict[str, int] = {}
        self.waited: list[float] = []  # seconds, for the memory

    def ask(self, key: str, work: float) -> None:
        self.work[key] = int(work * SECOND)
        if key not in self.here or key in self.moving:
            self.asked[key] = self.now

    def step(self, by: int = SECOND // 20) -> None:
        self.now += by
        ended = [key for key, (until, _) in self.moving.items() if self.now >= until]
        for key in ended:
            _, leaves = self.moving.pop(key)
            if leaves:
                self.here.discard(key)
            elif key in self.asked:
                self.waited.append((self.now - self.asked.pop(key)) / SECOND)
        at_work = [key for key in self.here - self.moving.keys() if self.work[key] > 0]
        for key in at_work:
            self.had[key] += by // len(at_work)
            self.work[key] -= by // len(at_work)
        if ended or not self.now % HALF:
            self.plan()

    def plan(self) -> None:
        free = (self.room - len(self.here)) * HELD
        known = [self.tenant(key, weight) for key, weight in self.weights.items()]
        for key, step in self.idle.plan(known, {"GPU-1": free}, self.now):
            leaves = step != RETURNS
            assert key not in self.moving and leaves == (key in self.here)
            if not leaves:
                assert free >= HELD and all(leaves for _, leaves in self.moving.values()), "it may be lost"
                self.here.add(key)
            self.moving[key] = self.now + int(self.took[leaves] * SECOND), leaves

    def tenant(self, key: str, weight: int) -> Tenant:
        there, moves = key in self.here, key in self.moving
        return tenant(
            key, self.had[key], not there or moves, weight=weight, idle_ns=1 << 62, moves=moves,
            wanted=not there and self.work[key] > 0, leaves=moves and self.moving[key][1],
            comes=moves and not self.moving[key][1],
            held=(HELD if there else 0,),
        )  # fmt: skip


def test_ten_that_are_asked_now_and_then() -> None:
    """Room for three of them; moves take what they did with 16 GiB. One exchange at a time, some wait for seven."""
    out, back, waited = 7.8, 3.1, list[float]()
    for seed in range(8):
        rng = random.Random(seed)
        machine = Machine(dict.fromkeys("abcdefghij", 1), 3, out, back)
        asks = {key: rng.expovariate(1 / 60) for key in machine.weights}
        while machine.now < 360 * SECOND:
            for key, at in asks.items():
                if machine.work[key] <= 0 and machine.now >= at * SECOND:
                    machine.ask(key, 1)
                    asks[key] = at + rng.expovariate(1 / 60)
            machine.step()
        waited += machine.waited
    waited.sort()
    assert len(waited) > 200 and waited[-1] <= 2.5 * (out + back), waited[-9:]


def test_all_that_always_work_take_turns() -> None:
    """Room for one: each has its part of the time by weight, and moving takes at most a tenth."""
    for weights in {"a": 1, "b": 1, "c": 1}, {"a": 3, "b": 1, "c": 1}, {"a": 999, "b": 999}:
        machine = Machine(weights | {"idle": 1}, 1, 0.5, 0.3)
        for key in weights:
            machine.ask(key, 3600)
        while machine.now < 900 * SECOND:
            machine.step()
        shares = {key: had / machine.now for key, had in machine.had.items()}
        assert all(shares[key] > 0.8 * weight / sum(weights.values()) for key, weight in weights.items()), shares
        assert sum(shares.values()) > 1 - 1 / STAY, shares


def test_who_could_not_be_suspended_is_not_counted_on() -> None:
    idle = Idle()
    found = [now for now in range(0, 20 * SECOND, HALF) if idle.plan((tenant("b"),), FULL, now)]
    assert found == [IDLE]
    assert idle.plan((asking(1), tenant("b")), FULL, 20 * SECOND) == (("a", ANSWERED),)


def test_who_works_stays_for_a_while_whatever_is_asked() -> None:
    idle = Idle()
    found = [(now, idle.plan((asking(1), tenant("b", now)), FULL, now)) for now in range(0, 9 * SECOND, HALF)]
    assert next(step for step in found if step[1]) == (STAY_LEAST, (("b", LEAVES),))


def test_one_slice_has_others_moved_now_and_then() -> None:
    """A tenant that asks again and again, as others come back."""
    idle, moved, away = Idle(), [], 0
    for now in range(0, 30 * SECOND, HALF):
        other = tenant("b", suspended=bool(away), idle_ns=1 << 62)
        steps = idle.plan((asking(1), other), ROOM if away else FULL, now)
        if ("b", LEAVES) in steps:
            moved.append(now)
            away = now
        elif ("a", ANSWERED) in steps:
            away = 0
    assert len(moved) > 3 and all(later - one >= AGAIN for one, later in zip(moved, moved[1:])), moved


def test_of_two_that_wait_for_each_other_one_leaves() -> None:
    idle = Idle()
    idle.plan((tenant(), tenant("b")), FULL, 0)
    assert not idle.plan((asking(5), tenant("b")), FULL, HALF)
    assert idle.plan((asking(5), asking(5, "b")), FULL, 2 * SECOND) == (("b", LEAVES),)
    away = tenant("b", suspended=True, wanted=True)
    assert idle.plan((asking(5), away), ROOM, 3 * SECOND) == (("a", ANSWERED),)
    found = [now for now in range(4 * SECOND, 99 * SECOND, HALF) if idle.plan((tenant("a", now), away), FULL, now)]
    assert found[0] == STAY * SECOND, "ten times as long as moving took; then it has its turn"
