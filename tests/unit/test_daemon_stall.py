"""A tenant whose work waits for the host when its lease is over: the next lease begins, and nobody pays for it."""

from __future__ import annotations

import pytest
from support.arbiter_world import FIXED, SECOND, Program, World

from nvc.daemon.io.wire import GRANT
from nvc.daemon.schedule.accounts import ALONE
from nvc.daemon.schedule.leases import Member
from nvc.slices.model.layout import CHANGE_TIME
from nvc.slices.model.policy import MS
from nvc.slices.policy.policies import DevicePolicy


def stalled() -> tuple[World, Member, Program]:
    """A tenant whose lease is over, and whose work waits for the host; and the holder of the next one, for 10 s."""
    world = World(DevicePolicy(FIXED))
    (member,) = world.add("stalls", Program(stuck=True), cores=50)
    world.want(member)
    other = world.start("other", Program(stuck=True), cores=50)
    arbiter = world.board.arbiters[world.uuids[0]]
    world.run(MS)
    arbiter.stall(member, member.round, True, 0, world.now)
    world.run(0)
    return world, member, other


def test_the_next_one_begins_at_once_beside_what_waits_for_the_host() -> None:
    world, member, other = stalled()
    assert [(time, kind) for time, kind, _ in other.messages] == [(world.now, GRANT)]
    held = member.tenant.held
    world.run(2 * SECOND)
    assert member.tenant.held == held and member.tenant.lates == 0
    arbiter = world.board.arbiters[world.uuids[0]]
    assert arbiter.tenants["other"].shared == 0


def test_what_runs_again_has_the_device_alone_and_then_half_of_it() -> None:
    world, member, other = stalled()
    arbiter, before = world.board.arbiters[world.uuids[0]], member.tenant.held
    world.run(5 * MS)
    arbiter.stall(member, member.round, False, 0, world.now)
    world.run(4 * MS)
    arbiter.release(member, member.round, False, 4 * MS, world.now)
    half = 2 * MS - MS * ALONE // (ALONE + CHANGE_TIME)  # with a change in each 2 ms of the other one
    assert member.tenant.held - before == 2 * MS + half == arbiter.tenants["other"].shared
    assert not arbiter.late and not member.stalled


def test_what_ends_behind_the_others_lease_is_made_good_too() -> None:
    """The other one ran out of credit before; it is told when it gives its next lease back."""
    world, member, _ = stalled()
    arbiter = world.board.arbiters[world.uuids[0]]
    user = arbiter.tenants["other"]
    (other,) = user.members
    world.run(5 * MS)
    arbiter.stall(member, member.round, False, 0, world.now)
    world.run(4 * MS)
    arbiter.release(other, other.round, False, 9 * MS, world.now)
    assert arbiter.lease is None and user.shared == 0  # it was told
    before = member.tenant.held
    world.run(MS)
    arbiter.release(member, member.round, False, 5 * MS, world.now)
    late = arbiter.tenants["stalls"]
    assert user.shared > 0
    assert late.held - before - MS == user.shared * 5 // 4 + 1  # but for the time without a lease


def test_what_ran_before_anybody_had_a_lease_is_no_part_of_what_is_shared() -> None:
    world, member, _ = stalled()
    arbiter = world.board.arbiters[world.uuids[0]]
    user = arbiter.tenants["other"]
    (other,) = user.members
    arbiter.release(other, other.round, False, 0, world.now)
    arbiter.stall(member, member.round, False, 0, world.now)
    before = member.tenant.held
    world.run(3 * MS)
    arbiter.want(other, world.now)
    world.run(4 * MS)
    arbiter.release(member, member.round, False, 7 * MS, world.now)
    lost = 2 * MS + 2 * MS - MS * ALONE // (ALONE + CHANGE_TIME)
    assert user.shared == lost
    assert member.tenant.held - before == 3 * MS + lost


@pytest.mark.parametrize("claimed", [3, 1000])
def test_what_ran_before_it_was_said_was_its_alone(claimed: int) -> None:
    """Its own meter says how much that was; no more than the time that passed since it last said something.

    It pays for the changes there and back too.
    """
    world, member, other = stalled()
    arbiter, before = world.board.arbiters[world.uuids[0]], member.tenant.held
    world.run(6 * MS)
    whole = arbiter.tenants["other"].held
    arbiter.stall(member, member.round, False, claimed * MS, world.now)
    had = min(claimed, 6) * MS + 2 * CHANGE_TIME
    assert member.tenant.held - before == had == arbiter.tenants["other"].shared
    assert arbiter.tenants["other"].held == whole + 6 * MS - had


def test_a_stall_of_another_round_or_of_one_that_holds_nothing_changes_nothing() -> None:
    world = World(DevicePolicy(FIXED))
    (member,) = world.add("one", Program(), cores=50)
    (second,) = world.add("two", Program(), cores=50)
    arbiter = world.board.arbiters[world.uuids[0]]
    arbiter.stall(second, 0, True, 0, world.now)
    world.want(member)
    arbiter.stall(member, member.round + 1, True, 0, world.now)
    arbiter.stall(member, member.round, True, 0, world.now)  # without an end, it is everybody's until DROP
    assert not arbiter.late and arbiter.lease is not None and arbiter.lease.holders == {member}
