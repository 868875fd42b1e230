"""What engines make of the simulated resource manager: stops, timeslices, ends; in virtual time."""

from __future__ import annotations

import pytest
from support import until
from support.rmcalls import Log, had
from support.simdriver import Client as Program
from support.simrm_host import Host
from support.virtual import device_time


def test_a_stopped_kernel_ends_right(host: Host, client_program: str) -> None:
    """By the events around it, 9 s and the 2 s of the stop; what comes behind it in its stream has run."""
    tenant = Program(client_program, host.slice.root, time=host.world).start()
    address = tenant.number("alloc", 4)
    tenant.call("write", address, 7)
    tenant.send("time", "sim_spin_9000ms", 1)
    host.world.run(4)
    group = host.group(tenant.pid)
    assert host.stop(group) == 0
    host.world.run(2)
    assert host.stop(group, False) == 0
    # The stop takes 0.5 ms to hold, and the start 0.3.
    assert float(tenant.receive()[0]) == pytest.approx(11_000 - 0.2, abs=0.05)
    assert tenant.number("read", address) == 7
    assert device_time(host.slice.root).of(tenant.pid) == pytest.approx(9, abs=1e-6)
    tenant.kill()


def test_who_is_killed_leaves_nothing(host: Host) -> None:
    """Also while it is stopped: its groups go, its region ends, and the other one has the GPU."""
    log = Log(host.client, host.subdevice)
    killed, other = host.worker(ns=9_000_000_000, batch=0), host.worker(ns=1_000_000, batch=0)
    host.world.run(0.5)
    stopped = host.group(killed.process.pid)
    host.stop(stopped)
    host.world.run(0.1)
    killed.kill()
    host.slice.workers.remove(killed)
    until(lambda: len(host.groups()) == 1, lambda: "its group stays")
    assert host.stop(stopped) == 0x21
    log.read()
    before, begin = device_time(host.slice.root), host.now()
    host.world.run(1)
    after = device_time(host.slice.root)
    assert after.of(other.process.pid) - before.of(other.process.pid) == pytest.approx(1, abs=0.003)
    assert had(log.read(), begin, host.now()) == {}


def test_who_closes_the_drivers_file_loses_its_channels(host: Host, client_program: str) -> None:
    """That is no way to leave a stop: what it has on the GPU fails."""
    tenant = Program(client_program, host.slice.root, time=host.world).start()
    tenant.call("launch", "sim_spin_10ms", 1)
    tenant.call("close-all")
    until(lambda: not host.groups(), lambda: "its groups stay")
    assert tenant.code("launch", "sim_spin_10ms", 1) in (0, 719)
    assert tenant.code("sync") == 719
    tenant.kill()


def test_the_driver_goes_on_without_its_server(host: Host) -> None:
    """When the server ends, nobody is stopped any more."""
    worker = host.worker(ns=1_000_000, batch=0)
    host.world.run(0.5)
    host.stop(host.group(worker.process.pid))
    host.world.run(0.1)
    before = device_time(host.slice.root).of(worker.process.pid)
    assert host.served.stop() == 0
    host.world.run(1)
    assert device_time(host.slice.root).of(worker.process.pid) - before == pytest.approx(1, abs=0.003)


def test_a_program_makes_what_a_cuda_program_makes(host: Host, client_program: str) -> None:
    """A client, and in it four groups of which one computes; no more of it when the last context is gone."""
    tenant = Program(client_program, host.slice.root, time=host.world)
    tenant.call("init")
    assert host.groups() == []
    tenant.call("context", 0)
    (group,) = host.groups()
    assert (group.pid, group.channels, group.timeslice, group.partition) == (tenant.pid, 8, 2048, 0)
    assert group.slot >= 0
    tenant.call("context", 1)
    assert sorted(one.partition for one in host.groups()) == [0, 9]
    assert len({one.client for one in host.groups()}) == 1
    tenant.kill()
    until(lambda: not host.groups(), lambda: "its groups stay")


def test_an_idle_context_keeps_no_other_from_being_stopped(host: Host, client_program: str) -> None:
    tenant = Program(client_program, host.slice.root, time=host.world).start()
    tenant.call("another", 0)
    working, idle = sorted(host.groups(), key=lambda group: group.handle)
    assert (working.client, working.slot) == (idle.client, idle.slot)
    host.stop(idle)
    host.world.run(0.001)
    assert float(tenant.call("time", "sim_spin_10ms", 1)[0]) == pytest.approx(10, abs=0.1)
    host.stop(idle, False)
    host.stop(working)
    host.world.run(0.001)
    tenant.send("time", "sim_spin_10ms", 1)
    host.world.run(0.5)
    host.stop(working, False)
    assert float(tenant.receive()[0]) == pytest.approx(510, abs=1)
    tenant.kill()
