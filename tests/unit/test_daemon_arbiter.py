"""Turns on one device: nobody beside another, shares as promised, nobody left out, whatever programs do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples
from support.arbiter_world import FAIR, FIXED, NATIVE, PREEMPT, SECOND, SOFT, WEIGHT, Program, World

from nvc.daemon.io.wire import DROP, FREE, GRANT
from nvc.daemon.server import CLIENTS_MAX, PER_SLICE_MAX, room_for_one
from nvc.slices.model.policy import MS
from nvc.slices.policy.entitlement import entitlements
from nvc.slices.policy.policies import DevicePolicy


def shares(world: World, seconds: int = 10) -> dict[str, float]:
    """What each tenant has of the next seconds."""
    before = world.held()
    world.run(seconds * SECOND)
    return {key: (held - before[key]) / (seconds * SECOND) for key, held in world.held().items()}


def test_alone_there_is_no_chatter() -> None:
    world = World(DevicePolicy(PREEMPT))
    world.add("idle", Program())
    program = world.start("busy", Program())
    world.run(10 * SECOND)
    assert [kind for _, kind, _ in program.messages] == [FREE]
    world.start("other", Program())
    world.run(MS)
    assert [kind for _, kind, _ in program.messages][:2] == [FREE, DROP]


@pytest.mark.parametrize(
    ("policy", "count"), [(PREEMPT, 2), (PREEMPT, 16), (FAIR, 4), (SOFT, 3), (WEIGHT, 5)]
)
def test_equals(policy: int, count: int) -> None:
    world = World(DevicePolicy(policy))
    for number in range(count):
        world.start(str(number), Program(drain=MS))
    for share in shares(world).values():
        assert share == pytest.approx(1 / count, abs=0.01)


def test_weights() -> None:
    world = World(DevicePolicy(WEIGHT))
    for weight in (1, 2, 4):
        world.start(str(weight), Program(drain=MS), weight)
    found = shares(world)
    assert [found[key] for key in "124"] == [pytest.approx(n / 7, rel=0.03) for n in (1, 2, 4)]


def test_weights_do_not_count_under_first() -> None:
    world = World(DevicePolicy(PREEMPT))
    world.start("1", Program(), 1)
    world.start("9", Program(), 9)
    assert shares(world)["9"] == pytest.approx(0.5, abs=0.01)


def test_percentages() -> None:
    world = World(DevicePolicy(FIXED))
    world.start("30", Program(drain=2 * MS), cores=30)
    world.start("70", Program(drain=MS), cores=70)
    found = shares(world)
    assert found["30"] == pytest.approx(0.30, abs=0.01) and found["70"] == pytest.approx(0.70, abs=0.01)


def test_percentages_are_upper_bounds_and_the_rest_is_for_who_has_none() -> None:
    world = World(DevicePolicy(FIXED))
    world.start("20", Program(), cores=20)
    world.start("25", Program(), cores=25)
    found = shares(world)
    assert found["20"] == pytest.approx(0.20, abs=0.01) and found["25"] == pytest.approx(0.25, abs=0.01)
    world.start("rest", Program())
    found = shares(world)
    assert found["20"] == pytest.approx(0.20, abs=0.01) and found["rest"] == pytest.approx(0.55, abs=0.01)


def test_who_rests_where_more_is_promised_than_there_is() -> None:
    """It has its part as the others have, who always wait."""
    world = World(DevicePolicy(FIXED))
    for number in range(3):
        world.start(str(number), Program(drain=MS), cores=40)
    world.start("rests", Program(work=12 * MS, idle=3 * MS), cores=40)
    assert shares(world)["rests"] == pytest.approx(0.25, abs=0.02)


def test_no_time_is_charged_twice() -> None:
    """Where something is told late that happened on another device."""
    world = World(DevicePolicy(PREEMPT))
    world.start("one", Program())
    world.run(SECOND)
    (arbiter,) = world.board.arbiters.values()
    held = world.held()["one"]
    arbiter.charge_until(world.now - SECOND // 2)
    assert world.held()["one"] == held


def test_fair_shares_are_not_given_to_others() -> None:
    world = World(DevicePolicy(FAIR, max_instances=4))
    world.start("one", Program(drain=MS))
    assert shares(world)["one"] == pytest.approx(0.25, abs=0.01)
    world.start("two", Program(drain=MS))
    assert list(shares(world).values()) == [pytest.approx(0.25, abs=0.01)] * 2


def test_fair_without_a_number_of_instances_counts_tenants() -> None:
    world = World(DevicePolicy(FAIR))
    program = world.start("one", Program())
    world.run(SECOND)
    assert [kind for _, kind, _ in program.messages] == [FREE]
    world.add("idle", Program())
    world.run(SECOND)
    assert shares(world)["one"] == pytest.approx(0.5, abs=0.01)


def test_who_is_idle_is_skipped_and_comes_back_at_once() -> None:
    world = World(DevicePolicy(PREEMPT))
    world.start("busy", Program(drain=MS))
    now_and_then = world.start("now and then", Program(work=2 * MS, idle=500 * MS))
    found = shares(world)
    assert found["busy"] > 0.97
    grants = [time for time, kind, _ in now_and_then.messages if kind in (FREE, GRANT)]
    assert len(grants) >= 18


def test_priority_by_weight() -> None:
    """90 % of solo within 200 ms of its arrival, and the other resumes as soon as it has gone."""
    world = World(DevicePolicy(WEIGHT))
    low = world.start("low", Program(drain=5 * MS), 1)
    world.run(SECOND)
    (high,) = world.add("high", Program(drain=MS), 16)
    world.want(high)
    world.run(SECOND // 10)
    before = world.held()["high"]
    world.run(SECOND // 10)
    assert world.held()["high"] - before >= 0.9 * SECOND / 10
    world.board.arbiters[world.uuids[0]].leave(high, world.now)
    count = len(low.messages)
    world.run(20 * MS)
    assert low.messages[count][1] in (FREE, GRANT)


def test_an_overrun_is_paid_for() -> None:
    """Kernels of 500 ms beside short ones: handed on at twice the slice, and charged to the end."""
    world = World(DevicePolicy(PREEMPT))
    world.start("long", Program(drain=500 * MS))
    world.start("short", Program())
    found = shares(world, 60)
    assert found["long"] == pytest.approx(0.5, abs=0.03)


def test_who_never_gives_back_costs_only_itself() -> None:
    world = World(DevicePolicy(PREEMPT))
    world.start("stuck", Program(stuck=True))
    one, two = world.start("one", Program()), world.start("two", Program())
    world.run(10 * SECOND)
    for program in (one, two):
        assert program.had / (10 * SECOND) == pytest.approx(0.5, abs=0.02)
    assert world.board.arbiters[world.uuids[0]].tenants["stuck"].lates == 1


@pytest.mark.parametrize("stuck", [1, 2, 6])
def test_who_works_beside_late_ones_has_more_time_to_finish(stuck: int) -> None:
    """The device runs all processes in turn, and the holder's work takes as many times longer."""
    world = World(DevicePolicy(WEIGHT))
    for _ in range(stuck):
        world.start("stuck", Program(stuck=True))
    for key in "ab":
        world.start(key, Program(drain=10 * MS * (stuck + 1) - MS))
    world.run(10 * SECOND)
    tenants = world.board.arbiters[world.uuids[0]].tenants
    assert [tenants[key].lates for key in ("stuck", "a", "b")] == [stuck, 0, 0]


@pytest.mark.parametrize("pleads", [0, 50 * MS])
@pytest.mark.parametrize("cores", [0, 10, 50])
def test_who_waits_for_its_next_turn_before_it_gives_one_back(pleads: int, cores: int) -> None:
    """It has another one, and what is charged meanwhile leaves the others what they are to have."""
    world = World(DevicePolicy(FIXED if cores else WEIGHT))
    stuck = world.start("stuck", Program(stuck=True, pleads=pleads), 1, cores)
    other = world.start("other", Program(), 1 if cores else 15, cores and 100 - cores)
    world.run(30 * SECOND)
    turns = sum(kind == GRANT for _, kind, _ in stuck.messages)
    assert turns >= 2 if pleads else turns <= 1
    assert other.had / (30 * SECOND) >= (1 - cores / 100 if cores else 15 / 16) - 0.01


def test_the_death_of_the_holder_is_the_next_ones_turn() -> None:
    world = World(DevicePolicy(PREEMPT))
    (victim,) = world.add("victim", Program(stuck=True))
    world.want(victim)
    other = world.start("other", Program())
    assert not other.messages
    world.board.arbiters[world.uuids[0]].leave(victim, world.now)
    world.run(1)
    assert [kind for _, kind, _ in other.messages] == [FREE]


def test_processes_of_a_tenant_share_its_turn() -> None:
    world = World(DevicePolicy(PREEMPT))
    for _ in range(3):
        world.start("three", Program(drain=MS))
    world.start("one", Program(drain=MS))
    found = shares(world)
    assert found["three"] == pytest.approx(0.5, abs=0.01)


def test_policies_change_while_programs_run() -> None:
    world = World(DevicePolicy(NATIVE))
    world.start("1", Program(drain=MS), 1)
    world.start("3", Program(drain=MS), 3)
    assert world.holders() == {"1", "3"}
    world.set_device_policy(DevicePolicy(WEIGHT))
    assert shares(world)["3"] == pytest.approx(0.75, abs=0.01)
    world.set_device_policy(DevicePolicy(PREEMPT))
    assert shares(world)["3"] == pytest.approx(0.5, abs=0.01)
    world.set_device_policy(DevicePolicy(NATIVE))
    world.run(SECOND)
    assert world.holders() == {"1", "3"}


def test_terms_change_and_pauses_are_kept() -> None:
    world = World(DevicePolicy(FIXED))
    world.start("a", Program(drain=MS), cores=20)
    world.start("b", Program(drain=MS), cores=20)
    world.run(SECOND)
    world.claim("a", cores=80)
    world.run(SECOND // 2)
    assert shares(world, 1)["a"] == pytest.approx(0.8, abs=0.03)
    world.claim("a", cores=80, paused=True)
    world.run(50 * MS)
    assert shares(world, 1)["a"] == 0
    world.claim("a", cores=20)
    world.run(50 * MS)
    assert shares(world, 1)["a"] == pytest.approx(0.2, abs=0.03)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any honest one, and some that are not."""
    if draw(st.booleans()):
        return Program(drain=draw(st.integers(0, 9 * MS)))
    return Program(
        drain=draw(st.integers(0, 60 * MS)),
        work=draw(st.sampled_from((0, MS, 5 * MS, 40 * MS))),
        idle=draw(st.sampled_from((1, 2 * MS, 300 * MS))),
        stuck=draw(st.integers(0, 5)) == 0,
    )


@settings(max_examples=examples(40))
@given(
    st.sampled_from((PREEMPT, WEIGHT, SOFT)),
    st.lists(st.integers(1, 16), min_size=2, max_size=5),
    st.lists(programs(), max_size=4),
)
def test_long_run_shares(policy: int, weights: list[int], others: list[Program]) -> None:
    """Of tenants that always want the device, among others that do what they like."""
    world = World(DevicePolicy(policy))
    for number, weight in enumerate(weights):
        world.start(f"busy{number}", Program(drain=2 * MS), weight)
    for number, program in enumerate(others):
        world.start(f"other{number}", program, number + 1)
    world.run(2 * SECOND)
    found = shares(world, 10)
    counted = [1] * len(weights) if policy == PREEMPT else weights
    busy = [found[f"busy{number}"] for number in range(len(weights))]
    assert sum(busy) > 0
    for share, weight in zip(busy, counted):
        assert share / sum(busy) == pytest.approx(weight / sum(counted), abs=0.03)


@settings(max_examples=examples(20))
@given(st.integers(10, 60), st.lists(st.tuples(st.integers(2, 8), programs()), min_size=1, max_size=5))
def test_percentages_hold_whatever_others_do(cores: int, asked: list[tuple[int, Program]]) -> None:
    """At least what was promised, when others have promises too that fit."""
    world = World(DevicePolicy(FIXED))
    mine = world.start("mine", Program(drain=MS), cores=cores)
    for number, (percent, program) in enumerate(asked):
        world.start(str(number), program, cores=percent)
    world.run(2 * SECOND)
    before = mine.all(world.now)
    world.run(5 * SECOND)
    assert mine.all(world.now) - before >= (cores / 100 - 0.03) * 5 * SECOND


def test_gangs_do_not_wait_for_each_other() -> None:
    """Each of them is ahead of the others on one of its devices; nothing moves there while all of them wait."""
    world = World(DevicePolicy(PREEMPT), devices=3)
    programs = [
        Program(),
        Program(),
        Program(drain=12857144),
        Program(),
        Program(stuck=True),
        Program(stuck=True),
    ]
    order = [(4, 1), (0, 1), (5, 1), (1, 3), (2, 3), (3, 2)]
    for number, devices in order:
        world.start(str(number), programs[number], devices=devices)
    for _ in range(5):
        before = [len(program.messages) for program in programs]
        world.run(SECOND)
        assert all(len(program.messages) > count for program, count in zip(programs[:4], before))


@pytest.mark.parametrize(
    ("policy", "shares"),
    [(WEIGHT, [0.7, 0.3]), (PREEMPT, [0.7, 0.3]), (FIXED, [0.7, 0.3]), (FAIR, [0.5, 0.3])],
)
def test_what_is_asked_for_beside_caps(policy: int, shares: list[float]) -> None:
    world = World(DevicePolicy(policy))
    world.add("a", Program(), 4, 70)
    world.add("b", Program(), 1, 30)
    (force,) = world.force.values()
    assert list(entitlements(force).values()) == pytest.approx(shares)


@given(st.lists(st.integers(0, 9), max_size=40))
def test_nobody_takes_all_connections(comers: list[int]) -> None:
    """However many a slice opens, and however many slices do: one that comes later has some."""
    held = [0] * 10
    for comer in comers:
        while held[comer] < room_for_one(sum(held)):
            held[comer] += 1
    assert sum(held) < CLIENTS_MAX and max(held) <= PER_SLICE_MAX
    assert room_for_one(sum(held)) > 100


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.integers(1, 3), programs()), min_size=1, max_size=6), st.integers(0, 4))
def test_gangs_never_stall(asked: list[tuple[int, Program]], policy: int) -> None:
    """Tenants with one to three devices: each that wants some has them within a bounded time."""
    world = World(DevicePolicy(policy), devices=3)
    honest = []
    for number, (devices, program) in enumerate(asked):
        if not program.stuck and not program.work and program.drain < 10 * MS:
            honest.append(program)
        world.start(str(number), program, cores=100 // len(asked), devices=devices)
    for _ in range(2):
        before = [len(program.messages) for program in honest]
        free = [world.holders(uuid) for uuid in world.uuids]
        world.run(4 * SECOND)
        for program, count in zip(honest, before):
            alone = any(
                str(n) in holders for n, (_, p) in enumerate(asked) if p is program for holders in free
            )
            assert len(program.messages) > count or alone


def test_who_works_beside_a_late_one_is_told_what_that_had() -> None:
    """A cap is charged for all of a kernel's time, also for what the late tenant had of it."""
    world = World(DevicePolicy(FIXED))
    world.start("long", Program(drain=200 * MS), cores=50)
    short = world.start("short", Program(), cores=50)
    world.run(10 * SECOND)
    lates = world.board.arbiters[world.uuids[0]].tenants["long"].lates
    assert lates > 10
    assert short.excess / lates == pytest.approx(
        (200 * MS - world.force[world.uuids[0]].quantum) / 2, rel=0.1
    )


@pytest.mark.parametrize("processes", [1, 3, 12])
def test_beside_many_late_processes_one_pays_for_its_own_part(processes: int) -> None:
    """The device runs all processes in turn: beside twelve a thirteenth is left, and no more is charged."""
    world = World(DevicePolicy(FIXED))
    for _ in range(processes):
        world.start("long", Program(drain=200 * MS), cores=50)
    short = world.start("short", Program(), cores=50)
    world.run(10 * SECOND)
    arbiter = world.board.arbiters[world.uuids[0]]
    beside = 200 * MS - world.force[world.uuids[0]].quantum
    turns = arbiter.tenants["long"].lates / processes
    assert turns > 10
    assert short.excess / turns == pytest.approx(beside * processes / (processes + 1), rel=0.1)
    # Where the others have finished, it has the device alone: it holds half of the time in all.
    assert world.held()["short"] == pytest.approx(5 * SECOND, rel=0.1)


def test_beside_a_late_one_nobody_has_the_device_for_good() -> None:
    world = World(DevicePolicy(FIXED))
    world.start("long", Program(drain=200 * MS), cores=50)
    short = world.start("short", Program(), cores=50)
    world.run(SECOND)
    assert FREE not in [kind for _, kind, _ in short.messages]


def test_beside_one_that_never_gives_back_bounds_hold() -> None:
    world = World(DevicePolicy(FIXED))
    world.start("stuck", Program(stuck=True), cores=50)
    short = world.start("short", Program(), cores=50)
    world.run(10 * SECOND)
    assert 200 * MS < short.excess < 300 * MS
