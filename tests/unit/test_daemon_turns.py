"""The end of one turn and the beginning of the next: who has it, and who pays for what runs on."""

from __future__ import annotations

from random import Random

import pytest
from support.arbiter_world import FIXED, SECOND, WEIGHT, Program, World

from nvc.daemon.io.wire import DROP, FREE, GRANT
from nvc.daemon.schedule.leases import Member
from nvc.slices.model.policy import MS
from nvc.slices.policy.policies import DevicePolicy


@pytest.mark.parametrize("count", [2, 4, 16])
def test_equals_alternate(count: int) -> None:
    """Though no two turns are as long: nobody has two before each of the others had one."""
    world = World(DevicePolicy(WEIGHT))
    chance = Random(count)
    programs = [world.start(str(n), Program(drain=MS, chance=chance)) for n in range(count)]
    world.run(10 * SECOND)
    turns = sorted(
        (at, n) for n, one in enumerate(programs) for at, kind, _ in one.messages if kind == GRANT
    )
    order = [n for _, n in turns]
    assert len(order) > 800
    for at in range(count, len(order) - count):
        assert sorted(order[at : at + count]) == list(range(count))


def test_who_has_longer_turns_has_fewer() -> None:
    """What it had too much is paid for by a whole turn."""
    world = World(DevicePolicy(WEIGHT))
    world.start("short", Program())
    world.start("long", Program(drain=30 * MS))
    before = world.held()
    world.run(10 * SECOND)
    had = {key: held - before[key] for key, held in world.held().items()}
    assert abs(had["long"] - had["short"]) <= 40 * MS


@pytest.mark.parametrize("tail", [MS, 3 * MS])
def test_what_runs_on_is_charged_to_whose_it_is(tail: int) -> None:
    """And not to who had the next turn. No time is lost, or charged twice."""
    world = World(DevicePolicy(WEIGHT))
    early = world.start("early", Program(tail=tail))
    late = world.start("late", Program())
    world.run(10 * SECOND)
    had = world.held()
    assert sum(had.values()) == 10 * SECOND
    runs_on = had["early"] - early.all(world.now)
    grants = sum(kind == GRANT for _, kind, _ in early.messages)
    assert (
        runs_on % tail == 0 and 0.9 * grants * tail < runs_on <= grants * tail
    )  # but for two turns in a row
    assert had["late"] == late.all(world.now) - runs_on
    assert abs(had["early"] - had["late"]) <= 25 * MS + 10 * SECOND // 200  # half a per cent is forgiven


def test_who_claims_to_have_run_on_for_ever_pays_until_its_next_turn() -> None:
    """Of several turns of others, only the first is not charged to them: it alone began too soon."""
    world = World(DevicePolicy(WEIGHT))
    world.start("claims", Program(tail=1000 * SECOND))
    world.start("other", Program())
    world.run(10 * SECOND)
    found = world.held()
    assert found["claims"] <= 10 * SECOND <= sum(found.values())
    assert _turns(world, "other") >= _turns(world, "claims")


def test_who_goes_without_a_word_pays_for_what_may_have_run() -> None:
    world = World(DevicePolicy(WEIGHT))
    world.start("goes", Program(tail=MS))
    world.start("other", Program())
    (member,) = (one for one in _members(world) if one.tenant.key == "goes")
    while not member.left:
        world.run(MS)
    before, since = world.held(), world.now
    world.run(2 * MS)
    left = member.left
    member.tenant.members.add(Member(member.tenant, Program()))  # the slice has another process
    world.board.arbiters[world.uuids[0]].leave(member, world.now)
    after = world.held()
    assert after["goes"] - before["goes"] == world.now - left
    assert after["other"] - before["other"] == world.now - since - (world.now - left)


def _turns(world: World, key: str) -> int:
    (arbiter,) = world.board.arbiters.values()
    return arbiter.tenants[key].grants


def _members(world: World) -> list[Member]:
    (arbiter,) = world.board.arbiters.values()
    return [member for tenant in arbiter.tenants.values() for member in tenant.members]


@pytest.mark.parametrize("count", [2, 4, 8])
def test_turns_that_are_a_little_longer_cost_none(count: int) -> None:
    """By a hundredth, always those of the same one: equals alternate all the same."""
    world = World(DevicePolicy(WEIGHT))
    programs = [world.start(str(n), Program(drain=MS + n * MS // 10 // count)) for n in range(count)]
    world.run(60 * SECOND)
    turns = sorted((at, n) for n, one in enumerate(programs) for at, kind, _ in one.messages if kind == GRANT)
    order = [n for _, n in turns]
    assert len(order) > 5000
    for at in range(count, len(order) - count):
        assert sorted(order[at : at + count]) == list(range(count))


@pytest.mark.parametrize("drain", [MS, 5 * MS, 9 * MS, 40 * MS])
def test_little_is_forgiven(drain: int) -> None:
    """Who always has longer turns has at most a point more than its part."""
    world = World(DevicePolicy(WEIGHT))
    world.start("long", Program(drain=drain))
    world.start("short", Program())
    world.run(60 * SECOND)
    assert world.held()["long"] / (60 * SECOND) == pytest.approx(0.5, abs=0.01)


def test_leases_of_a_small_cap_are_not_the_shortest() -> None:
    """A change of the device costs the other tenant time. Leases of the smallest caps would be too seldom."""
    world = World(DevicePolicy(FIXED))
    for cores in (1, 5, 8, 10, 50):
        world.claim(str(cores), cores=cores)
    arbiter = world.board.arbiters[world.uuids[0]]
    lengths = {int(key): arbiter.lease_length(tenant) for key, tenant in arbiter.tenants.items()}
    quantum = arbiter.quantum
    assert lengths == {
        1: quantum // 4, 5: quantum // 4, 8: 4 * MS, 10: quantum // 2, 50: quantum // 2
    }  # fmt: skip


@pytest.mark.parametrize(
    "cores, part, since, waits",
    [
        (10, 0.2, 2 * MS, True),
        (10, 0.4, 2 * MS, True),
        (10, 0.6, 2 * MS, False),
        (10, 0.4, SECOND, False),
        (60, 0.2, 2 * MS, False),
    ],
)
def test_nobody_drains_for_a_smaller_cap_that_holds_its_slice_back(
    cores: int, part: float, since: int, waits: bool
) -> None:
    """It asks as soon as it has credit for a kernel. The other one would have the device again at once."""
    world = World(DevicePolicy(FIXED))
    other = world.start("other", Program(drain=4 * MS), cores=60)
    began = world.now
    (short,) = world.add("short", Program(), cores=cores)
    (third,) = world.add("third", Program(), cores=30)
    world.run(since)
    (arbiter,) = world.board.arbiters.values()
    short.tenant.budget, short.tenant.refilled = part * arbiter.lease_length(short.tenant), world.now
    world.want(short)
    end = began + arbiter.lease_length(arbiter.tenants["other"]) if waits else world.now
    world.run(MS)
    world.want(third)  # whose cap has all that it saves: it waits as for any other lease
    world.run(40 * MS)
    assert [(at, kind) for at, kind, _ in other.messages][:2] == [(began, FREE), (end, DROP)]
