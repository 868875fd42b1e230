"""The switch log of the simulated resource manager, in virtual time."""

from __future__ import annotations

import random

import pytest
from support import rmcalls
from support.rmcalls import Log
from support.simrm_host import SWITCH, Host
from support.vgpucap import Worker
from support.virtual import device_time

from nvc.kernel import rm


def test_what_finds_no_room_is_counted(host: Host) -> None:
    """The oldest records stay; what was lost is missing in the sequence, as is what a fault drops."""
    log = Log(host.client, host.subdevice, 16)
    for _ in range(2):
        host.worker(ns=1_000_000, batch=0)
    host.world.run(0.5)
    host.client.control(log.buffer, rmcalls.FLUSH)
    lost = log.dropped()
    first = log.look()
    assert lost > 400 and len(first) == 15 and [one.sequence for one in first] == list(range(15))
    assert log.dropped() == 0
    host.world.run(0.01)
    second = log.read()
    assert second[0].sequence == 15 + lost and log.dropped() == 0
    host.served.fault("drop 3")
    host.world.run(0.01)
    third = log.read()
    assert third[0].sequence == second[-1].sequence + 4
    host.served.fault("late 1000")
    host.world.run(0.01)
    assert log.read() == []
    host.served.fault("none")
    assert log.read()[0].sequence == third[-1].sequence + 1


def test_nvcd_is_told_how_many_it_missed(host: Host) -> None:
    """By gaps in the sequence, and by the driver where there was no room: each once."""
    for _ in range(2):
        host.worker(ns=1_000_000, batch=0)
    ours = rm.Rm.open(host.served.path)
    log = ours.subdevice(0).log()
    host.world.run(0.1)
    records, lost = log.read()
    assert {one.kind for one in records} == {rm.START, rm.END} and lost == 0
    host.served.fault("drop 3")
    host.world.run(0.01)
    records, lost = log.read()
    assert records and lost == 3
    host.served.fault("none")
    host.world.run(30)
    records, lost = log.read()
    assert len(records) == 508 * 32 - 1 and lost > 0
    host.world.run(0.01)
    assert log.read()[1] == 0
    log.close()
    ours.close()


def test_a_lone_tenant_writes_nothing_until_it_is_stopped(host: Host) -> None:
    log = Log(host.client, host.subdevice)
    worker = host.worker(ns=1_000_000, batch=0)
    pid = worker.process.pid
    host.world.run(1)
    assert [(record.kind, record.pid) for record in log.read()] == [(rmcalls.START, pid)]
    host.world.run(1)
    assert log.read() == []
    begin = host.now()
    assert host.stop(host.group(pid)) == 0
    host.world.run(0.01)
    (end,) = log.read()
    assert (end.kind, end.pid, end.time - begin) == (rmcalls.END, pid, pytest.approx(500_000, abs=1000))
    begin = host.now()
    assert host.stop(host.group(pid), False) == 0
    host.world.run(0.01)
    (start,) = log.read()
    assert (start.kind, start.pid, start.time - begin) == (
        rmcalls.START,
        pid,
        pytest.approx(300_000, abs=1000),
    )


def test_an_idle_tenant_that_is_stopped_ends_its_region(host: Host) -> None:
    """Also if it is started again before anybody looks."""
    log = Log(host.client, host.subdevice)
    worker = host.worker(ns=1_000_000, batch=1, idle=100)
    pid = worker.process.pid
    host.world.run(1)
    assert [record.kind for record in log.read()] == [rmcalls.START]
    begin = host.now()
    host.stop(host.group(pid))
    host.world.run(0.002)
    host.stop(host.group(pid), False)
    host.world.run(0.1)
    (end,) = log.read()
    assert (end.kind, end.time - begin) == (rmcalls.END, pytest.approx(500_000, abs=1000))


@pytest.mark.parametrize("seed", range(2, 4))
def test_nobody_has_what_another_has(host: Host, seed: int) -> None:
    """Tenants that always work, stopped, started and given timeslices at random.

    Regions do not overlap, none lies in a stop, and of each tenant they add up to what the driver's account says.
    """
    chance = random.Random(seed)
    variables = host.slice.environment(NVC_SIM_SWITCH_NS=str(SWITCH))
    variables["LD_LIBRARY_PATH"] = host.slice.real_directory()
    for ns in (50_000, 300_000, 20_000_000, 3_000_000_000):
        arguments = {"ns": ns, "batch": 0, "seconds": 600, "warm": 0}
        host.slice.workers.append(Worker(host.slice.tool, variables, time=host.world, **arguments))
    pids = [worker.process.pid for worker in host.slice.workers]
    log = Log(host.client, host.subdevice, 16384)
    host.world.run(0.3)
    log.read()
    held = {pid: host.group(pid) for pid in pids}
    tenants = {pid: host.tenants(worker, held[pid]) for pid, worker in zip(pids, host.slice.workers)}
    for pid in pids:
        assert host.stop(held[pid]) == 0
    host.world.run(0.002)
    log.read()
    before, records, stops = device_time(host.slice.root), [], {pid: [(host.now(), True)] for pid in pids}
    for _ in range(60):
        pid = chance.choice(pids)
        if chance.random() < 0.2:
            tenants[pid].set_timeslice(held[pid].handle, chance.choice((100, 1000, 4000, 20_000)))
        else:
            on = chance.random() < 0.4
            stops[pid].append((host.now() + (500_000 if on else 300_000), on))
            assert host.stop(held[pid], on) == 0
        host.world.run(chance.choice((0.0006, 0.002, 0.01, 0.05)))
        records += log.read()
    for pid in pids:
        host.stop(held[pid])
    host.world.run(0.01)
    records += log.read()
    after = device_time(host.slice.root)
    for end, start in zip(records[1::2], records[2::2]):
        assert (end.kind, start.kind) == (rmcalls.END, rmcalls.START) and end.time <= start.time
    assert log.dropped() == 0 and {record.pid for record in records} <= set(pids)
    for pid in pids:
        own = [record for record in records if record.pid == pid]
        regions = [(one.time, other.time) for one, other in zip(own[::2], own[1::2])]
        assert sum(end - start for start, end in regions) / 1e9 == pytest.approx(
            after.of(pid) - before.of(pid), abs=1e-6
        )
        for (at, on), (until_, _) in zip(stops[pid], stops[pid][1:]):
            bad = [one for one in regions if on and one[1] > at + 100 and one[0] < until_ - 100]
            assert not bad, (at, until_, bad)
