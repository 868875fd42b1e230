"""The whole timekeeper against a model of the driver, in virtual time: what slices get."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from support.gpumodel import MS, SECOND, Burst, always, steps
from support.timehost import Host, demand

from nvc.daemon.keeper.keeper import LATE, Service
from nvc.model.slices.layout import KEPT_FOR


def near(found: float, wanted: float, points: float) -> bool:
    return abs(found - wanted) <= points


@pytest.mark.parametrize("weights", [(1, 9), tuple(range(1, 9))])
def test_weights_divide_the_time_of_those_that_always_work(weights: tuple[int, ...]) -> None:
    host = Host(*(demand(str(place), "weight", weight=one) for place, one in enumerate(weights)))
    for place in range(len(weights)):
        host.tenant(str(place), place + 1, always())
    host.run(SECOND)
    found = host.by_slice(5 * SECOND)
    whole = sum(found.values())
    for place, one in enumerate(weights):
        assert near(100 * found[str(place)] / whole, 100 * one / sum(weights), 0.5)


def test_six_processes_have_one_slice_s_share() -> None:
    host = Host(demand("many", "weight"), demand("one", "weight"))
    for pid in range(1, 7):
        host.tenant("many", pid, always())
    host.tenant("one", 9, always())
    host.run(2 * SECOND)
    found = host.by_slice(5 * SECOND)
    assert near(100 * found["one"] / sum(found.values()), 50, 0.5)


@pytest.mark.parametrize("cap", [10, 90])
def test_a_cap_holds_beside_a_tenant_that_always_works(cap: int) -> None:
    host = Host(demand("a", "fixed", cap), demand("b", "fixed"))
    host.tenant("a", 1, always())
    host.tenant("b", 2, always())
    host.run(SECOND)
    found = host.seconds(5)
    assert near(sum(one["a"] for one in found) / 5, cap, 0.2)
    assert all(near(one["a"], cap, 2) for one in found), found
    assert all(one["b"] >= 100 - cap - 1 for one in found), found


@pytest.mark.parametrize("caps", [(90, 10), (12, 13) * 4])
def test_several_caps_hold_together(caps: tuple[int, ...]) -> None:
    host = Host(*(demand(str(place), "fixed", cap) for place, cap in enumerate(caps)))
    for place in range(len(caps)):
        host.tenant(str(place), place + 1, always())
    host.run(2 * SECOND)
    found = host.seconds(5)
    for place, cap in enumerate(caps):
        assert near(sum(one[str(place)] for one in found) / 5, cap, 0.2), (cap, found)
        assert all(near(one[str(place)], cap, 2) for one in found), (cap, found)


@pytest.mark.parametrize("policy", ["weight", "soft"])
@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [((30, 1), (60, 3), (30, 60)), ((45, 1), (0, 9), (10, 90)), ((60, 1), (60, 3), (40, 60))],
)
def test_caps_and_weights_give_what_top_calls_entitled(
    policy: str, one: tuple[int, int], other: tuple[int, int], wanted: tuple[int, int]
) -> None:
    """A cap takes time from its slice, and none from others."""
    host = Host(demand("a", policy, *one), demand("b", policy, *other))
    host.tenant("a", 1, always())
    host.tenant("b", 2, always())
    host.run(2 * SECOND)
    found = host.by_slice(5 * SECOND)
    assert near(found["a"], wanted[0], 1) and near(found["b"], wanted[1], 3), found


@pytest.mark.parametrize("idle_ends", [True, False])
def test_time_that_a_slice_certainly_idled_is_given_back_up_to_one_period(idle_ends: bool) -> None:
    host = Host(demand("a", "fixed", 10), idle_ends=idle_ends)
    took: list[int] = []

    def requests(work: int) -> Iterator[Burst]:
        yield 0, 3 * SECOND
        while True:
            begun = host.gpu.now
            yield work, SECOND
            took.append(host.gpu.now - begun)

    host.tenant("a", 1, requests(18 * MS))
    host.run(8 * SECOND)
    assert len(took) == 5 and max(took[1:]) < SECOND + 19 * MS, took
    host = Host(demand("a", "fixed", 10), idle_ends=idle_ends)
    host.tenant("a", 1, requests(40 * MS))
    took.clear()
    host.run(8 * SECOND)
    assert min(took[1:]) > SECOND + 100 * MS, "more than one period is kept"


def test_who_is_first_has_the_gpu_as_long_as_it_works() -> None:
    host = Host(demand("a", "first", first=True), demand("b", "weight"))
    host.tenant("a", 1, always())
    host.tenant("b", 2, always())
    host.run(SECOND)
    found = host.by_slice(5 * SECOND)
    assert found["a"] > 98 and 0.3 < found["b"] < 1, found
    host = Host(demand("a", "first", first=True), demand("b", "weight"))
    loop = host.tenant("a", 1, steps(2 * MS, MS))
    host.tenant("b", 2, always())
    host.run(SECOND)
    before = loop.had
    host.run(3 * SECOND)
    assert (loop.had - before) / (2 * MS) > 0.85 * 1000, "as many steps as alone, but for changes"


@pytest.mark.parametrize("kernel", [5_000, 3 * SECOND])
def test_the_length_of_kernels_makes_no_difference(kernel: int) -> None:
    """Kernels are preempted in the middle; whoever has them back to back always works."""
    host = Host(demand("a", "fixed", 25), demand("b", "fixed"))
    host.tenant("a", 1, steps(kernel, 0))
    host.tenant("b", 2, steps(MS, 0))
    host.run(SECOND)
    found = host.seconds(2)
    assert all(near(one["a"], 25, 0.5) and one["b"] >= 74 for one in found), found
    host = Host(demand("a", "weight", weight=1), demand("b", "weight", weight=3))
    host.tenant("a", 1, steps(kernel, 0))
    host.tenant("b", 2, steps(MS, 0))
    host.run(SECOND)
    found = host.seconds(2)
    assert all(near(100 * one["a"] / (one["a"] + one["b"]), 25, 0.5) for one in found), found


def test_after_nvcd_has_ended_a_cap_holds_until_shims_keep_it() -> None:
    host = Host(demand("a", "fixed", 30))
    work = host.tenant("a", 1, always())
    host.run(2 * SECOND)
    begun, had = host.gpu.now, work.had
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with other:
        Service(
            other, host.keeper, host.gpu.clock,
            sleep=lambda seconds: host.gpu.wait(host.gpu.now + max(int(seconds * SECOND), 1000)),
        ).run()  # fmt: skip
    passed = host.gpu.now - begun
    assert abs(passed - KEPT_FOR - LATE) < 5 * MS and not work.off
    assert abs(100 * (work.had - had) / passed - 30) < 2
