"""A process that makes a context takes time from who has the device: it is charged, and they get it back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.arbiter_world import FIXED, SECOND, Program, World

from nvc.daemon.io.wire import DROP
from nvc.daemon.schedule.arbiter import Arbiter
from nvc.daemon.schedule.disturbance import AT_ONCE, MOST, MOST_OF_ALL, disturb
from nvc.daemon.schedule.leases import Member
from nvc.daemon.schedule.slice_index import costs_of
from nvc.slices.model.layout import MAKING_LASTS, MAKING_TIME
from nvc.slices.model.policy import MS
from nvc.slices.model.quota import QuotaDevice
from nvc.slices.policy.entitlement import ASSUMED, DeviceCosts
from nvc.slices.policy.policies import DevicePolicy

COST = MAKING_TIME


def beside(cores: int = 90) -> tuple[World, Arbiter, Member, Program]:
    """A process without work, beside another slice that has the device without an end."""
    world = World(DevicePolicy(FIXED))
    (member,) = world.add("makes", Program(), cores=100 - cores)
    other = world.start("other", Program(stuck=True), cores=cores)
    return world, world.board.arbiters[world.uuids[0]], member, other


def test_who_makes_a_context_pays_and_who_has_the_device_gets_it_back() -> None:
    world, arbiter, member, _ = beside()
    user = arbiter.tenants["other"]
    budget = member.tenant.budget
    held = user.held
    disturb(arbiter, member, True, world.now)
    assert member.tenant.held == COST and member.tenant.budget == budget - COST
    world.run(140 * MS)
    arbiter.charge_until(world.now)
    lost = int(140 * MS * 0.9) * COST // MAKING_LASTS
    assert user.shared == lost and user.held - held == 140 * MS - lost
    assert member.disturbs == COST - lost


def test_who_has_a_lease_without_an_end_is_told_when_the_context_is_made() -> None:
    world, arbiter, member, other = beside()
    disturb(arbiter, member, True, world.now)
    world.run(70 * MS)
    disturb(arbiter, member, False, world.now)
    world.run(0)
    assert other.messages[-1][1] == DROP and other.excess == int(70 * MS * 0.9) * COST // MAKING_LASTS
    assert arbiter.tenants["other"].shared == 0 and not arbiter.disturbing
    world.run(SECOND)
    arbiter.charge_until(world.now)
    assert arbiter.tenants["other"].shared == 0
    assert arbiter.lease is not None and not arbiter.lease.dropped


def test_what_lasted_for_less_than_it_costs_is_given_back_but_for_what_others_got() -> None:
    """By the time that passes here: what the process says of it does not matter."""
    world, arbiter, member, _ = beside()
    disturb(arbiter, member, True, world.now)
    world.run(MS)
    disturb(arbiter, member, False, world.now)
    assert member.tenant.held == MS
    disturb(arbiter, member, False, world.now)
    assert member.tenant.held == MS


def test_a_process_is_charged_for_no_more_contexts_than_it_can_be_making() -> None:
    world, arbiter, member, _ = beside()
    for _ in range(100):
        disturb(arbiter, member, True, world.now)
    assert member.tenant.held == AT_ONCE * COST
    world.run(10 * SECOND)
    arbiter.charge_until(world.now)
    assert arbiter.tenants["other"].shared <= AT_ONCE * COST and not arbiter.disturbing


@pytest.mark.parametrize("times", [1 / 3, 3])
def test_what_a_context_costs_is_what_the_host_has_measured(times: float) -> None:
    world, arbiter, member, _ = beside()
    costs = DeviceCosts(int(COST * times), MAKING_LASTS)
    arbiter.set_policy(arbiter.force.replace(costs=costs), world.now)
    disturb(arbiter, member, True, world.now)
    assert member.tenant.held == costs.making
    world.run(140 * MS)
    arbiter.charge_until(world.now)
    assert arbiter.tenants["other"].shared == int(140 * MS * 0.9) * costs.making // MAKING_LASTS


def test_nobody_gets_back_what_its_own_processes_took() -> None:
    world, arbiter, _, _ = beside()
    user = arbiter.tenants["other"]
    (second,) = world.add("other", Program(), cores=90)
    disturb(arbiter, second, True, world.now)
    world.run(100 * MS)
    arbiter.charge_until(world.now)
    assert user.shared == 0


def test_a_process_that_ends_meanwhile_takes_no_more() -> None:
    world, arbiter, member, _ = beside()
    disturb(arbiter, member, True, world.now)
    world.run(14 * MS)
    arbiter.leave(member, world.now)
    world.run(SECOND)
    arbiter.charge_until(world.now)
    assert not arbiter.disturbing and member.tenant.held == COST


def test_the_newest_slice_that_was_measured_says_what_the_device_costs() -> None:
    def made(created: int, making: int) -> Any:
        device = QuotaDevice("GPU", 1, making_time=making, making_lasts=making * 9, change_time=making // 80)
        return SimpleNamespace(entry=SimpleNamespace(created=created)), device

    assert costs_of([made(1, 0), made(2, 0)]) == ASSUMED
    assert costs_of([made(2, 800), made(1, 1600), made(3, 0)]) == DeviceCosts(800, 7200, 10)


def test_processes_that_end_meanwhile_are_forgotten_though_nobody_has_the_device() -> None:
    """A slice may start as many as it likes."""
    world = World(DevicePolicy(FIXED))
    for _ in range(3):
        (member,) = world.add("makes", Program(), cores=10)
        arbiter = world.board.arbiters[world.uuids[0]]
        disturb(arbiter, member, True, world.now)
        world.run(MS)
        arbiter.leave(member, world.now)
        assert arbiter.lease is None and not arbiter.disturbing


def test_who_has_the_device_gets_back_what_was_lost_until_the_process_ended() -> None:
    world, arbiter, member, _ = beside()
    disturb(arbiter, member, True, world.now)
    world.run(14 * MS)
    arbiter.leave(member, world.now)
    lost = int(14 * MS * 0.9) * COST // MAKING_LASTS
    assert arbiter.tenants["other"].shared == lost and not arbiter.disturbing
    world.run(SECOND)
    arbiter.charge_until(world.now)
    assert arbiter.tenants["other"].shared == lost


def test_of_many_processes_all_pay_and_some_are_followed() -> None:
    """Each charge looks at all that are followed. They give back as much as all together are believed to take."""
    world, arbiter, _, _ = beside()
    many = [world.add("makes", Program(), cores=10)[0] for _ in range(3 * MOST)]
    user = arbiter.tenants["other"]
    for member in many:
        disturb(arbiter, member, True, world.now)
    assert arbiter.tenants["makes"].held == 3 * MOST * COST and len(arbiter.disturbing) == MOST
    world.run(100 * MS)
    arbiter.charge_until(world.now)
    assert user.shared == int(100 * MS * 0.9) // MOST_OF_ALL
    left_out = next(member for member in many if member not in arbiter.disturbing)
    disturb(arbiter, left_out, False, world.now)
    assert arbiter.tenants["makes"].held == 3 * MOST * COST and not left_out.disturbs
    for number in range(1, 2 * AT_ONCE):  # it goes on paying
        disturb(arbiter, left_out, True, world.now)
        assert arbiter.tenants["makes"].held == (3 * MOST + number) * COST
