"""Timeslices that the timekeeper reads back, in virtual time."""

from __future__ import annotations

from support.gpumodel import MS, SECOND, always, steps
from support.timehost import Host, demand

from nvc.daemon.keeper.device import READ_BACK, READ_BACK_ODD, DeviceTime


def device(host: Host) -> DeviceTime:
    assert host.account is not None
    return host.account.devices[0]


def test_a_timeslice_that_a_process_sets_unseen_is_set_again_and_told_of() -> None:
    host = Host(demand("a", "weight"), demand("b", "weight"))
    host.tenant("a", 1, always())
    work = host.tenant("b", 2, always())
    host.run(2 * SECOND)
    work.length = SECOND
    host.run(4 * SECOND)
    assert abs(host.by_slice(5 * SECOND)["a"] - 48.2) < 0.5
    assert [one.retimed for one in device(host).slices] == [0, 1]


def test_few_timeslices_are_read_back_and_each_in_its_turn() -> None:
    host = Host(*(demand(str(place), "weight") for place in range(16)))
    made = [host.tenant(str(place), place + 1, steps(MS, 30 * MS)) for place in range(16)]
    made += [host.tenant("0", 100 + place, steps(MS, 500 * MS)) for place in range(15)]
    host.run(3 * SECOND)
    for one in made:
        one.length += 1000
    before, spent = host.gpu.calls["read"], host.gpu.calls["timeslice"]
    host.run(4 * SECOND)
    assert 5 * READ_BACK < host.gpu.calls["read"] - before <= 5 * READ_BACK_ODD
    assert host.gpu.calls["timeslice"] - spent < 60
