"""What a tenant with a cap lost beside a process of another one that was late for long, and what it gets back."""

from __future__ import annotations

from support.arbiter_world import FIXED, SECOND, Program, World

from nvc.daemon.schedule.accounts import SAVED
from nvc.daemon.schedule.arbiter import Arbiter
from nvc.daemon.schedule.lateness import LENT
from nvc.daemon.schedule.leases import Member
from nvc.daemon.schedule.order import FORGOTTEN
from nvc.slices.model.policy import MS
from nvc.slices.policy.policies import DevicePolicy

LEASE = 40 * MS  # nobody is charged more often beside one that is late


def beside(late: int) -> tuple[World, Arbiter, Member, Program]:
    """A process that has been late for so many nanoseconds, and another tenant's, which never waits."""
    world = World(DevicePolicy(FIXED))
    (member,) = world.add("late", Program(stuck=True), cores=50)
    world.want(member)
    other = world.start("other", Program(), cores=50)
    arbiter = world.board.arbiters[world.uuids[0]]
    while not member.tenant.late:
        world.run(MS)
    world.run(member.since + late - world.now)
    arbiter.charge_until(world.now)
    return world, arbiter, member, other


def test_for_half_a_second_it_is_given_back_at_once() -> None:
    world, arbiter, member, other = beside(LENT - LEASE)
    waits = arbiter.tenants["other"].shared
    assert 0.4 * LENT < other.excess + waits < 0.6 * LENT
    assert not member.noted
    before = other.excess
    arbiter.release(member, member.round, False, LENT, world.now)
    assert other.excess == before


def test_what_was_noted_after_that_is_given_back_when_it_is_late_no_longer() -> None:
    world, arbiter, member, other = beside(LENT + 400 * MS)
    before = other.excess
    assert 0.4 * LENT < before + arbiter.tenants["other"].shared < 0.6 * LENT
    (noted,) = member.noted.values()
    assert 0.4 * 400 * MS < noted < 0.6 * 400 * MS
    held = arbiter.tenants["late"].held
    arbiter.release(member, member.round, False, 900 * MS, world.now)
    assert other.excess - before == noted and not member.noted
    assert arbiter.tenants["late"].held == held  # it pays for it, as it did for the rest
    assert arbiter.tenants["late"].budget < -0.4 * (LENT + 400 * MS)


def test_no_more_is_given_back_than_a_cap_saves() -> None:
    """Else the meter of an honest tenant would fall far below what NVML shows."""
    world, arbiter, member, other = beside(10 * SECOND)
    before = other.excess
    arbiter.release(member, member.round, False, 10 * SECOND, world.now)
    assert other.excess - before == LENT


def test_nothing_is_given_back_of_one_that_is_killed() -> None:
    """Nobody says what of its work ran."""
    world, arbiter, member, other = beside(LENT + 400 * MS)
    before = other.excess
    arbiter.leave(member, world.now)
    assert other.excess == before and not member.noted


def test_nothing_is_noted_for_one_that_is_gone() -> None:
    """Slices may come and go for as long as one is late."""
    world, arbiter, member, _ = beside(LENT + 400 * MS)
    assert member.noted
    arbiter.forget("other", world.now)
    assert not member.noted


def test_a_tenant_without_a_cap_needs_nothing_back() -> None:
    world, arbiter, member, other = beside(LENT + 400 * MS)
    before = other.excess
    world.claim("other", cores=0)
    arbiter.release(member, member.round, False, 900 * MS, world.now)
    assert other.excess == before


def saved(rest: int) -> float:
    """What is left of what a tenant has saved beside a late one, after such a rest, in nanoseconds."""
    world, arbiter, _, _ = beside(4 * SECOND)
    tenant = arbiter.tenants["other"]
    (member,) = tenant.members
    before = arbiter.budget(tenant, world.now)
    assert 100 * MS < before < SAVED / 2
    arbiter.release(member, member.round, False, 0, world.now)
    world.run(rest)
    world.want(member)
    return tenant.budget / before


def test_a_short_rest_costs_no_savings_and_brings_none() -> None:
    """Its own cap makes a program rest for moments: what it lost to another tenant is due still."""
    assert saved(20 * MS) == 1.0
    assert saved(FORGOTTEN + MS) < 0.3
