"""Processes in no slice on a GPU that slices share: what they and the slices get, by on-stranger."""

from __future__ import annotations

import pytest
from support.gpumodel import MS, SECOND, always, steps
from support.timehost import Host, demand

from nvc.daemon.keeper.plan import NATIVE_US, SLICE, STOP, STRANGERS, Plan
from nvc.slices.policy.entitlement import entitlements, in_force, with_guest
from nvc.slices.policy.policies import DevicePolicy


def shares(host: Host, strangers: int = 1) -> dict[str, float]:
    """What slices and strangers had of the time in which the GPU worked, if all always work."""
    for place, one in enumerate(host.demands):
        host.tenant(one.key, place + 1, always())
    for number in range(strangers):
        host.tenant(STRANGERS, 100 + number, always())
    host.run(2 * SECOND)
    found = host.by_slice(5 * SECOND)
    return {key: 100 * part / sum(found.values()) for key, part in found.items()}


@pytest.mark.parametrize("strangers", [1, 6])
def test_they_are_together_one_tenant_of_weight_1(strangers: int) -> None:
    found = shares(Host(demand("a", "weight"), demand("b", "weight", weight=3), on_stranger=SLICE), strangers)
    assert [round(found[key]) for key in ("a", "b", STRANGERS)] == [20, 60, 20], found


def test_a_slice_alone_has_most_of_it_by_its_weight() -> None:
    found = shares(Host(demand("a", "weight", weight=9), on_stranger=SLICE), strangers=4)
    assert round(found["a"]) == 90, found
    left = shares(Host(demand("a", "weight", weight=9), on_stranger="leave"), strangers=4)
    assert left["a"] < 80, "as the driver has it, each of them has its turn"


def test_under_fair_they_have_one_of_the_equal_parts() -> None:
    host = Host(demand("a", "fair"), demand("b", "fair"), on_stranger=SLICE)
    found = shares(host, strangers=3)
    assert all(abs(part - 100 / 3) < 0.5 for part in found.values()), found
    host = Host(demand("a", "fair"), policy=DevicePolicy(max_instances=4), on_stranger=SLICE)
    host.tenant("a", 1, always())
    host.tenant(STRANGERS, 100, always())
    host.run(2 * SECOND)
    assert all(abs(part - 25) < 0.5 for part in host.by_slice(5 * SECOND).values())


def test_they_are_behind_who_is_first() -> None:
    found = shares(Host(demand("a", "first", first=True), on_stranger=SLICE))
    assert found["a"] > 98 and found[STRANGERS] > 0.3, found


@pytest.mark.parametrize("caps", [(50, 50), (70, 30)])
def test_caps_that_promise_all_of_the_time_hold_beside_them(caps: tuple[int, ...]) -> None:
    host = Host(*(demand(str(place), "fixed", cap) for place, cap in enumerate(caps)), on_stranger=SLICE)
    for place in range(len(caps)):
        host.tenant(str(place), place + 1, always())
    host.tenant(STRANGERS, 100, always())
    host.run(2 * SECOND)
    found = host.by_slice(5 * SECOND)
    for place, cap in enumerate(caps):
        assert cap - 2 < found[str(place)] <= cap + 0.5, found
    assert found[STRANGERS] > 0.1, found


def test_they_have_what_caps_leave() -> None:
    host = Host(demand("a", "fixed", 30), on_stranger=SLICE)
    host.tenant("a", 1, always())
    host.tenant(STRANGERS, 100, steps(MS, 0))
    host.run(2 * SECOND)
    found = host.by_slice(5 * SECOND)
    assert abs(found["a"] - 30) < 0.5 and found[STRANGERS] > 68, found


def test_when_no_slice_is_left_they_have_the_driver_s_timeslice_again() -> None:
    host = Host(demand("a", "first", first=True), on_stranger=SLICE)
    host.tenant("a", 1, always())
    stranger = host.tenant(STRANGERS, 100, always())
    host.run(SECOND)
    assert stranger.length == 100_000
    host.keeper.apply(Plan())
    assert stranger.length == NATIVE_US * 1000
    assert not stranger.off


def test_stop_lets_none_of_them_run_while_slices_are_there() -> None:
    host = Host(demand("a", "weight"), on_stranger=STOP)
    host.tenant("a", 1, always())
    stranger = host.tenant(STRANGERS, 100, always())
    host.run(SECOND)
    assert host.by_slice(SECOND)[STRANGERS] == 0
    host.keeper.apply(Plan())
    assert not stranger.off


def test_no_part_of_a_slice_is_more_for_the_guest() -> None:
    demands = tuple(demand(str(place), "fair") for place in range(3))
    force = with_guest(in_force(DevicePolicy(max_instances=8), demands), "guest")
    parts = {key: round(1 / part) for key, part in entitlements(force).items()}
    assert parts == {"0": 8, "1": 8, "2": 8, "guest": 8}
