"""The whole timekeeper in virtual time, where tenants, the log and the driver make trouble."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from support.gpumodel import GONE, MS, SECOND, Context, Log, Record, Subdevice, after, always, steps
from support.timehost import UUID, Host, demand

from nvc.daemon.keeper.device import DeviceTime
from nvc.daemon.keeper.plan import DevicePlan, Plan


def device(host: Host) -> DeviceTime:
    assert host.account is not None
    return host.account.devices[0]


def capped(cap: int = 10, neighbour: bool = False) -> Host:
    host = Host(demand("a", "fixed", cap), *((demand("b", "fixed"),) if neighbour else ()))
    if neighbour:
        host.tenant("b", 99, always())
    return host


def with_a_stale_plan() -> Host:
    """Its plan still names a process that has died."""
    host = capped(20)
    dying = host.tenant("a", 1, always())
    host.tenant("a", 2, always())
    host.run(SECOND)
    stale = host.plan()
    host.end(dying)
    host.told = lambda found: stale
    return host


@pytest.mark.parametrize("neighbour", [True, False])
def test_processes_that_come_and_go_have_one_cap(neighbour: bool) -> None:
    """Each 50 ms another process makes a context, works, and ends."""
    host = capped(10, neighbour)
    there: list[Context] = []

    def change() -> None:
        if there:
            host.end(there.pop())
        there.append(host.tenant("a", host.gpu.now // MS, always()))
        host.gpu.at(host.gpu.now + 50 * MS, change)

    change()
    host.run(SECOND)
    # What a process has before it is known, in the 10 ms until the plan names it, is charged to the next ones.
    for found in host.seconds(8):
        assert found["a"] <= 12, found


def test_a_storm_of_processes_has_one_slice_s_share() -> None:
    host = Host(demand("a", "weight"), demand("b", "weight"))
    host.tenant("b", 99, always())
    there: list[Context] = []
    chance, pid = random.Random(5), 1000

    def change() -> None:
        nonlocal pid
        for _ in range(chance.randrange(4)):
            if there and (len(there) > 12 or chance.random() < 0.5):
                host.end(there.pop(chance.randrange(len(there))))
            else:
                pid += 1
                there.append(host.tenant("a", pid, always()))
        host.gpu.at(host.gpu.now + chance.randrange(20, 400) * MS, change)

    change()
    host.run(2 * SECOND)
    found = host.by_slice(5 * SECOND)
    assert found["b"] > 38, found


def test_groups_with_more_channels_than_a_call_takes() -> None:
    host = capped(25)
    host.tenant("a", 1, always(), channels=100)
    host.tenant("a", 2, always(), channels=150)
    host.run(SECOND)
    found = host.seconds(5)
    assert abs(sum(one["a"] for one in found) / 5 - 25) < 0.2, found


def test_channels_made_while_the_slice_is_stopped_are_stopped_at_once() -> None:
    host = Host(demand("a", "weight", paused=True))
    work = host.tenant("a", 1, always())
    host.run(SECOND)
    assert host.run(SECOND)[1] == 0
    made = work.handle + 0x800
    work.channels.append(made)
    work.uses = made
    work.serial += 1
    assert host.run(SECOND)[1] <= 2, "known within 10 ms"
    assert not device(host).slices[0].broke, "nobody has started them"


def test_a_channel_made_again_under_its_old_handle_is_stopped_again() -> None:
    host = Host(demand("a", "weight", paused=True))
    work = host.tenant("a", 1, always())
    host.run(SECOND)
    work.off.clear()
    work.serial += 1
    assert host.run(SECOND)[1] <= 2


def test_whoever_is_started_by_somebody_else_is_told_of() -> None:
    host = Host(demand("a", "weight", paused=True))
    work = host.tenant("a", 1, always())
    host.tenant("a", 2, always())
    host.run(SECOND)
    work.off.clear()
    found = host.run(SECOND // 2)
    ((pid, had),) = device(host).slices[0].broke
    assert pid == 1 and 50 * MS < had < 150 * MS, "until the next look"
    assert found[1] < 30 and host.run(SECOND)[1] == 0, "it is stopped again"


def test_a_timeslice_that_a_process_sets_is_set_again() -> None:
    host = Host(demand("a", "weight"), demand("b", "weight"))
    host.tenant("a", 1, always())
    work = host.tenant("b", 2, always())
    host.run(SECOND)
    work.length = SECOND
    work.touched += 1
    host.run(2 * SECOND)
    assert abs(host.by_slice(5 * SECOND)["a"] - 48.2) < 0.5


def test_a_process_that_dies_between_the_plan_and_the_call() -> None:
    """Its channels are gone, so calls that name them are done in part. Those of others are reached all the same."""
    host = with_a_stale_plan()
    before = host.gpu.calls["stop"]
    found = host.seconds(4)
    assert all(abs(one["a"] - 20) < 2 for one in found), found
    assert host.gpu.calls["stop"] - before < 4 * (10 + 8), "what is gone is not named in each call"
    assert not device(host).problem and not device(host).failed


def test_a_stopped_process_that_frees_and_makes_contexts_costs_few_calls() -> None:
    """It lives, and what it has freed is gone: nobody goes through that one channel at a time."""
    host = Host(demand("a", "weight", paused=True))
    made = host.tenant("a", 1, always(), channels=60)
    host.tenant("a", 1, always())

    def change() -> None:
        nonlocal made
        host.gpu.end(made)
        made = host.tenant("a", 1, always(), channels=60)
        host.gpu.at(host.gpu.now + 50 * MS, change)

    host.run(SECOND)
    change()
    before = host.gpu.spent
    assert host.run(2 * SECOND)[1] < 25, "it runs until nvcd knows, 10 ms of 50 here"
    assert host.gpu.spent - before < 0.15 * 2 * SECOND


def test_a_driver_that_does_nothing_after_the_first_that_is_gone() -> None:
    host = with_a_stale_plan()
    each = host.gpu._each

    def partly(channels: Sequence[tuple[int, int]], off: bool) -> int:
        there = {(one.client, channel) for one in host.gpu.contexts for channel in one.channels}
        for place, channel in enumerate(channels):
            if channel not in there:
                each(channels[:place], off)
                return GONE
        return each(channels, off)

    host.gpu._each = partly  # type: ignore[method-assign]
    found = host.seconds(4)
    assert all(abs(one["a"] - 20) < 3 for one in found), found


@pytest.mark.parametrize("neighbour", [True, False])
def test_a_log_that_loses_records_never_lets_a_slice_run_unbounded(neighbour: bool) -> None:
    host = capped(20, neighbour)
    host.tenant("a", 1, always())
    chance = random.Random(3)
    read = Log.read

    def lossy(self: Log) -> tuple[list[Record], int]:
        found, lost = read(self)
        kept = [one for one in found if chance.random() < 0.7]
        return kept, lost + len(found) - len(kept)

    host.run(SECOND)
    Log.read = lossy  # type: ignore[method-assign]
    try:
        found = host.seconds(6)
    finally:
        Log.read = read  # type: ignore[method-assign]
    assert all(one["a"] <= 22 for one in found), found
    assert device(host).lost > 0 and device(host).slices[0].doubtful_ns > 0
    host.run(SECOND)
    assert all(abs(one["a"] - 20) < 2 for one in host.seconds(3))


def test_without_a_log_the_clock_holds_caps() -> None:
    host = capped(20, True)
    host.gpu.has_log = False
    host.tenant("a", 1, always())
    host.run(SECOND)
    found = host.seconds(4)
    assert all(0 < one["a"] <= 22 for one in found), found
    assert "log" in device(host).problem and not device(host).logged
    host.gpu.has_log = True
    host.run(3 * SECOND)
    assert device(host).logged and not device(host).problem
    assert all(abs(one["a"] - 20) < 2 for one in host.seconds(3))


@pytest.mark.parametrize("by", [-3600 * SECOND, -20 * MS, 20 * MS, 3600 * SECOND])
def test_a_clock_of_the_gpu_that_jumps(by: int) -> None:
    host = capped(20, True)
    host.tenant("a", 1, always())
    host.run(2 * SECOND)

    def jump() -> None:
        host.gpu.offset += by

    host.gpu.at(host.gpu.now + 333 * MS, jump)
    found = host.seconds(5)
    assert all(abs(one["a"] - 20) <= 2 for one in found), found
    assert device(host).jumps == 1


@pytest.mark.parametrize("by", [-10_000, 10_000])
def test_a_timer_of_the_gpu_that_drifts(by: int) -> None:
    """It is read once a second: a driver that is busy takes a millisecond for that."""
    host = capped(20, True)
    host.tenant("a", 1, always())
    host.run(2 * SECOND)

    def drift() -> None:
        host.gpu.offset += by
        host.gpu.at(host.gpu.now + 100 * MS, drift)

    drift()
    before = host.gpu.calls["now"]
    found = host.seconds(5)
    assert all(abs(one["a"] - 20) <= 0.3 for one in found), found
    assert device(host).jumps == 0 and host.gpu.calls["now"] - before <= 6


def test_a_timekeeper_that_waits_for_a_processor() -> None:
    """Between any two calls it may be held up: that is no jump of the timer, and nobody is charged with it."""
    host = capped(20, True)
    host.tenant("a", 1, always())
    host.run(2 * SECOND)
    chance, call = random.Random(1), host.gpu.call

    def late(name: str, takes: int) -> int | None:
        return call(name, takes + (8 * MS if chance.random() < 0.1 else 0))

    host.gpu.call = late  # type: ignore[method-assign]
    found = host.seconds(5)
    assert device(host).jumps == 0 and device(host).slices[0].doubtful_ns < 200 * MS
    assert abs(sum(one["a"] for one in found) / 5 - 20) <= 0.3, found
    had = host.had()
    for pid, counted, _ in device(host).pids:
        assert abs(counted - had[pid]) < 0.3 * SECOND, "what came since the last account"


def test_a_timekeeper_that_was_held_up_forgives_what_is_beyond_a_second() -> None:
    host = capped(10)
    host.tenant("a", 1, always())
    host.run(SECOND)
    host.gpu.wait(host.gpu.now + 30 * SECOND)
    host.run(2 * SECOND)
    assert all(abs(one["a"] - 10) <= 2 for one in host.seconds(3))


def test_a_driver_that_answers_every_call_with_an_error() -> None:
    host = capped(20, True)
    host.tenant("a", 1, always())
    host.run(SECOND)
    host.gpu.status = 0x56
    host.run(2 * SECOND)
    assert device(host).problem == "start channels: not supported (RM status 0x56)"
    before = dict(host.gpu.calls)
    host.run(2 * SECOND)
    assert host.gpu.calls["stop"] - before["stop"] <= 40, "it is not called without end"
    host.gpu.status = None
    host.run(3 * SECOND)
    assert not device(host).problem and dict(device(host).failed)[0x56] > 0
    assert all(abs(one["a"] - 20) <= 2 for one in host.seconds(3))


def test_one_slice_whose_channels_are_refused_does_not_take_the_device_along() -> None:
    host = Host(demand("a", "fixed", 20), demand("b", "fixed", 30))
    odd = host.tenant("a", 1, always())
    host.tenant("b", 2, always())
    host.run(SECOND)
    each = host.gpu._each

    def refusing(channels: Sequence[tuple[int, int]], off: bool) -> int:
        return 0x40 if any(client == odd.client for client, _ in channels) else each(channels, off)

    host.gpu._each = refusing  # type: ignore[method-assign]
    host.run(2 * SECOND)
    assert not device(host).problem and abs(host.by_slice(SECOND)["b"] - 30) < 1
    assert device(host).slices[0].refused > 5 and device(host).slices[1].refused == 0


def test_a_device_that_cannot_be_opened_is_told_of_and_tried_again() -> None:
    host = capped(20)
    host.tenant("a", 1, always())
    opened = host.gpu.subdevice

    def refused(uuid: str) -> Subdevice:
        raise OSError(5, "no such GPU")

    host.gpu.subdevice = refused  # type: ignore[method-assign]
    host.run(2 * SECOND)
    assert "no such GPU" in device(host).problem
    host.gpu.subdevice = opened  # type: ignore[method-assign]
    host.run(2 * SECOND)
    assert abs(host.by_slice(SECOND)["a"] - 20) < 1


def test_a_cap_that_changes_holds_at_once() -> None:
    host = capped(10)
    host.tenant("a", 1, always())
    host.run(SECOND)
    host.demands = (demand("a", "fixed", 60),)
    host.run(SECOND // 5)
    assert abs(host.by_slice(SECOND)["a"] - 60) <= 1
    host.demands = (demand("a", "fixed", 10, period_us=20_000),)
    host.run(SECOND)
    assert abs(host.by_slice(SECOND)["a"] - 10) <= 0.3
    host.demands = (demand("a", "weight"),)
    host.run(SECOND // 5)
    assert host.by_slice(SECOND)["a"] == 100
    assert not host.keeper.devices[UUID].executor.off


def test_what_leaves_the_plan_is_started_and_what_an_earlier_one_stopped_too() -> None:
    host = Host(demand("a", "weight"))
    work = host.tenant("a", 1, always())
    work.off.update(work.channels)  # by a timekeeper that was killed
    host.run(SECOND)
    assert not work.off
    host.demands = (demand("a", "weight", paused=True),)
    host.run(SECOND)
    assert work.off == set(work.channels)
    host.told = lambda found: Plan((DevicePlan(UUID, ()),))
    host.run(SECOND)
    assert not work.off, "it lives, and nobody stops it any more"
    host.told = lambda found: found
    host.run(SECOND)
    host.told = lambda found: Plan()
    host.run(SECOND)
    assert not work.off


def test_a_slice_that_leaves_and_comes_back_has_no_fresh_quota() -> None:
    host = capped(10)
    host.run(SECOND)
    had = 0
    for pid in range(1, 30):
        work = host.tenant("a", pid, always())
        host.run(60 * MS)
        had += work.had
        host.end(work)
        host.run(40 * MS)
    assert had / (29 * 100 * MS) < 0.125


def test_looks_are_few() -> None:
    """Calls in ten seconds: one look at the end of a quota, a start and a stop; beside others a few looks more."""
    host = capped(10)
    host.tenant("a", 1, always())
    host.run(2 * SECOND)
    before = dict(host.gpu.calls)
    host.run(10 * SECOND)
    calls = {name: count - before.get(name, 0) for name, count in host.gpu.calls.items()}
    assert calls["stop"] <= 101 and calls["start"] <= 101 and calls["flush"] <= 115, calls
    idle = Host(*(demand(str(place), "weight") for place in range(16)))
    for place in range(16):
        idle.tenant(str(place), place + 1, steps(MS, 30 * MS))
    idle.run(2 * SECOND)
    before = dict(idle.gpu.calls)
    idle.run(10 * SECOND)
    calls = {name: count - before.get(name, 0) for name, count in idle.gpu.calls.items()}
    assert calls["flush"] <= 101 and not calls["timeslice"] and not calls["start"], calls


def test_a_slice_that_begins_late_is_held_from_its_first_period() -> None:
    host = capped(10, True)
    host.tenant("a", 1, after(5 * SECOND, always()))
    host.run(5 * SECOND)
    found = host.seconds(3)
    assert found[0]["a"] <= 12 and all(abs(one["a"] - 10) <= 2 for one in found[1:]), found
