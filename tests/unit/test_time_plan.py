"""Timeslices and quotas of a device's slices, by the policy in force."""

from __future__ import annotations

import pytest
from support.timehost import UUID, demand

from nvc.daemon.keeper.plan import (
    LATELY,
    LONGEST_US,
    NATIVE_US,
    TURNS,
    DevicePlan,
    Group,
    Plan,
    SlicePlan,
    phases,
    plan,
    working,
)
from nvc.model.slices.policy import FIRST, MS
from nvc.slices.policy.entitlement import Demand, entitlements, in_force
from nvc.slices.policy.policies import DevicePolicy


def group(pid: int) -> Group:
    return Group(pid, 1, pid, 3, (2, 3))


def planned(
    *demands: Demand,
    policy: DevicePolicy | None = None,
    activity: dict[int, int] | None = None,
    groups: int = 1,
) -> dict[str, SlicePlan]:
    """The plan by slice; the first slice has so many groups, the others one."""
    found: dict[str, tuple[Group, ...]] = {
        one.key: (group(100 + place),) for place, one in enumerate(demands)
    }
    found[demands[0].key] = tuple(group(1 + number) for number in range(groups))
    made = plan(UUID, in_force(policy or DevicePolicy(), demands), found, activity or {})
    return {one.key: one for one in made.slices}


def lengths(found: dict[str, SlicePlan]) -> list[int]:
    return [one.timeslice_us for one in found.values()]


def test_equal_tenants_have_4_ms_each() -> None:
    assert lengths(planned(*(demand(str(n), "weight") for n in range(8)))) == [4000] * 8
    assert lengths(planned(*(demand(str(n), "soft") for n in range(8)))) == [16000] * 8
    quantum = DevicePolicy(quantum_us=10_000)
    assert lengths(planned(*(demand(str(n), "weight") for n in range(3)), policy=quantum)) == [10_000] * 3


@pytest.mark.parametrize("weights", [(1, 9), (1, 2, 3, 4, 5, 6, 7, 8), (1, 99), (1, 150), (3, 5, 11)])
def test_timeslices_are_in_proportion_to_weights(weights: tuple[int, ...]) -> None:
    found = lengths(planned(*(demand(str(n), "weight", weight=one) for n, one in enumerate(weights))))
    for length, weight in zip(found, weights):
        assert abs(length / sum(found) - weight / sum(weights)) < 0.0005
    assert max(found) <= LONGEST_US and (min(found) >= 1000 or max(found) == LONGEST_US)


def test_a_slice_s_time_is_for_its_groups_that_work() -> None:
    two = demand("a", "weight"), demand("b", "weight")
    assert lengths(planned(*two, groups=4)) == [1000, 4000]
    busy = {1: 250 * MS, 2: 245 * MS, 100: 500 * MS}
    assert lengths(planned(*two, groups=4, activity=busy)) == [2000, 4000]
    assert working((group(1), group(2)), {1: 100, 2: 50}) == 1.5
    assert working((group(1), group(2), group(3)), {1: 100, 2: 85, 3: 95}) == 3


def test_caps_are_quotas_and_bursts_of_one_period() -> None:
    found = planned(
        demand("a", "fixed", 25), demand("b", "fixed"), demand("c", "fixed", 10, period_us=20_000)
    )
    assert (found["a"].quota_ns, found["a"].period_ns, found["a"].burst_ns) == (25 * MS, 100 * MS, 25 * MS)
    assert (found["c"].quota_ns, found["c"].period_ns) == (2 * MS, 20 * MS)
    assert found["b"].quota_ns == 0
    found = planned(demand("a", "fair"), demand("b", "fair"), policy=DevicePolicy(max_instances=4))
    assert [one.quota_ns for one in found.values()] == [25 * MS] * 2


def test_caps_hold_also_under_weight() -> None:
    found = planned(demand("a", "weight", 20), demand("b", "weight"))
    assert found["a"].quota_ns == 20 * MS and found["b"].quota_ns == 0


def test_native_and_concurrent_are_left_to_the_driver() -> None:
    found = planned(demand("a", "native"), demand("b", "native", paused=True))
    assert lengths(found) == [NATIVE_US] * 2 and [one.stopped for one in found.values()] == [False, True]
    assert lengths(planned(demand("a", "concurrent"), demand("b", "concurrent"))) == [0, 0]


def test_paused_slices_are_stopped_under_every_policy() -> None:
    for name in ("fair", "first", "weight", "fixed", "soft", "native", "concurrent"):
        found = planned(demand("a", name, 10), demand("b", name, 10, paused=True))
        assert [one.stopped for one in found.values()] == [False, True], name


def test_who_is_first_has_20_ms_and_the_others_the_floor() -> None:
    chat, train = demand("a", "first", first=True), demand("b", "weight")
    first = DevicePolicy(policy=FIRST)
    assert lengths(planned(chat, train, policy=first)) == [20_000, 100]
    assert lengths(planned(chat, train, policy=first.replace(floor_us=1000))) == [20_000, 1000]
    assert sorted(
        lengths(planned(chat, demand("c", "first", first=True), train, policy=first)), reverse=True
    ) == [
        10_000,
        10_000,
        100,
    ]
    assert lengths(planned(chat, demand("c", "first", first=True), policy=first)) == [4000, 4000]
    assert lengths(planned(demand("c", "weight"), train, policy=first)) == [4000, 4000]
    parts = entitlements(in_force(first, (chat, train)))
    assert parts["a"] == pytest.approx(200 / 201) and parts["b"] == pytest.approx(1 / 201)


def test_slices_without_groups_stay_in_the_plan() -> None:
    made = plan(UUID, in_force(DevicePolicy(), (demand("a", "fixed", 10),)), {}, {})
    assert made.slices == (SlicePlan("a", (), 0, False, 10 * MS, 100 * MS, 10 * MS),)


def test_a_capped_slice_begins_at_the_same_moment_on_all_devices() -> None:
    """Those before it end there, so that two tenants of 50 % take turns."""
    quotas = {"a": 50 * MS, "b": 50 * MS, "c": 0, "d": 25 * MS}
    whole = [SlicePlan(key, (), 0, False, quota, 100 * MS) for key, quota in quotas.items()]
    both = Plan((DevicePlan("GPU-0", (whole[2], whole[1])), DevicePlan("GPU-1", tuple(whole))))
    assert phases(both) == {"b": 0, "a": 50 * MS, "d": 0}
    other = whole[3].replace(key="e", period_ns=20 * MS)
    assert phases(Plan((DevicePlan("GPU-0", (*whole, other)),)))["e"] == 0, "other periods, other turns"


def turns(
    had: dict[int, int], spanning: frozenset[str], first: bool = False, policy: DevicePolicy | None = None
) -> list[int]:
    """The quotas of slices a and b with processes 1 and 2, percent; `had` lately."""
    force = in_force(policy or DevicePolicy(), (demand("a", "weight", first=first), demand("b", "weight")))
    found = plan(UUID, force, {"a": (group(1),), "b": (group(2),)}, had, spanning)
    return percent(found)


def percent(plan: DevicePlan) -> list[int]:
    """The quotas of slices."""
    return [one.quota_ns * 100 // one.period_ns for one in plan.slices]


@pytest.mark.parametrize(
    ("had", "wanted"),
    [
        ((50, 50, 0, 0), [50, 50, 0, 0]),  # who does nothing leaves its part
        ((40, 40, 20, 0), [40, 40, 0, 0]),  # what it had of it
        ((30, 30, 30, 0), [33, 33, 33, 0]),
        ((40, 30, 0, 30), [35, 35, 0, 30]),  # the last one has a cap of 30
    ],
)
def test_quotas_of_jobs_on_several_devices_share_what_others_leave(had: tuple[int, ...], wanted: list[int]) -> None:
    """Percent. On two H200s, two jobs beside four idle ones had a sixth each."""
    demands = [*(demand(key, "weight") for key in "abc"), demand("d", "weight", cores=30)]
    force = in_force(DevicePolicy(), tuple(demands))
    groups = {one.key: (group(pid),) for pid, one in enumerate(demands, 1)}
    activity = {pid: part * LATELY // 100 for pid, part in enumerate(had, 1)}
    found = plan(UUID, force, groups, activity, frozenset("ab"))
    assert percent(found) == [*wanted[:3], 30]
    assert {one.period_ns for one in found.slices} == {TURNS}, "they begin one behind the other"


def test_turns_lie_one_behind_the_other_whatever_caps_there_are() -> None:
    cap = SlicePlan("a", (), quota_ns=70 * MS)
    turns = [SlicePlan(key, (), quota_ns=50 * MS, in_turn=True) for key in "bc"]
    both = Plan(tuple(DevicePlan(uuid, (cap, *turns)) for uuid in ("GPU-0", "GPU-1")))
    found = phases(both)
    assert (found["b"], found["c"]) == (0, 50 * MS)
