"""The simulated driver's resource manager: what it answers, and what engines make of it, in virtual time."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import sys
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, REPO, rmcalls, until
from support.rmcalls import Client, Log, had
from support.simdriver import Client as Program
from support.simrm import Served, serve
from support.vgpucap import Capped, Worker, end_workers
from support.virtual import World, device_time

from nvc.sim import state
from nvc.sim.layout import STATE

PIDFD_GETFD = 438
SWITCH = 150_000
libc = ctypes.CDLL(None)


class Host:
    """A simulated GPU with its resource manager, and an own client that stops others."""

    def __init__(self, slice_: Capped, served: Served, world: World) -> None:
        self.slice, self.served, self.world = slice_, served, world
        self.client = Client(served.path)
        self.device = self.client.device()
        self.subdevice = self.client.alloc(self.device, rmcalls.SUBDEVICE, bytes(4))

    def groups(self) -> list[state.Group]:
        return state.groups(os.path.join(self.slice.root, STATE))

    def group(self, pid: int) -> state.Group:
        (found,) = [one for one in self.groups() if one.pid == pid]
        return found

    def worker(self, **arguments: object) -> Worker:
        return self.slice.native(seconds=600, warm=0, **arguments)

    def channels(self, group: state.Group) -> list[tuple[int, int]]:
        """libcuda's handles are one after the other."""
        return [(group.client, group.handle + 1 + i) for i in range(group.channels)]

    def stop(self, group: state.Group, on: bool = True) -> int:
        return self.client.disable(self.subdevice, self.channels(group), on)

    def tenants(self, worker: Worker, group: state.Group) -> Client:
        """The tenant's client, by its own descriptor."""
        process = os.pidfd_open(worker.process.pid)
        for name in os.listdir(f"/proc/{worker.process.pid}/fd"):
            if os.stat(f"/proc/{worker.process.pid}/fd/{name}").st_dev == os.stat(self.served.path).st_dev:
                fd = libc.syscall(PIDFD_GETFD, process, int(name), 0)
                os.close(process)
                return Client(self.served.path, fd, group.client)
        raise AssertionError("no descriptor")


@pytest.fixture
def host(capped: Callable[..., Capped], simrm: str, world: World) -> Iterator[Host]:
    slice_ = capped()
    with serve(slice_.root, simrm, world) as served:
        made = Host(slice_, served, world)
        yield made
        for worker in slice_.workers:
            worker.kill()
        slice_.workers.clear()
        made.client.close()


def test_two_timeslices_divide_the_gpu(host: Host) -> None:
    """1 to 3 ms: 25 to 75 percent."""
    one, other = host.worker(ns=1_000_000, batch=0), host.worker(ns=1_000_000, batch=0)
    host.world.run(0.5)
    for worker, us in ((one, 1000), (other, 3000)):
        group = host.group(worker.process.pid)
        host.tenants(worker, group).set_timeslice(group.handle, us)
    host.world.run(0.1)
    before = device_time(host.slice.root)
    host.world.run(4)
    after = device_time(host.slice.root)
    had_by = [
        after.of(one.process.pid) - before.of(one.process.pid),
        after.of(other.process.pid) - before.of(other.process.pid),
    ]
    assert had_by == [pytest.approx(1, abs=0.01), pytest.approx(3, abs=0.01)]


def test_a_stop_takes_effect_in_the_middle_of_a_kernel(host: Host) -> None:
    """A kernel of 9 s, stopped for 2 s after 1 s of it: nothing runs meanwhile, and it ends 2 s later."""
    worker = host.worker(ns=9_000_000_000, batch=1, trace=1)
    host.world.run(1)
    pid = worker.process.pid
    group = host.group(pid)
    log = Log(host.client, host.subdevice)
    assert host.stop(group) == 0
    before = device_time(host.slice.root).of(pid)
    host.world.run(2)
    stopped = device_time(host.slice.root).of(pid)
    assert stopped - before <= 0.003
    assert host.stop(group, False) == 0
    host.world.run(1)
    running = device_time(host.slice.root).of(pid)
    assert running - stopped == pytest.approx(1, abs=0.003)
    records = log.read()
    print(before, stopped, running, records)


def gpu_ns(host: Host) -> int:
    return int(struct.unpack("<Q", host.client.control(host.subdevice, rmcalls.TIME, bytes(8)))[0])


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


def test_the_log_adds_up(host: Host) -> None:
    """Two tenants: regions of a timeslice each, a switch between them, and together what the account says."""
    log = Log(host.client, host.subdevice)
    variables = {**host.slice.environment(NVC_SIM_SWITCH_NS=str(SWITCH))}
    variables["LD_LIBRARY_PATH"] = host.slice.real_directory()
    host.slice.workers += [
        Worker(host.slice.tool, variables, time=host.world, ns=1_000_000, batch=0, seconds=600, warm=0)
        for _ in range(2)
    ]
    pids = [worker.process.pid for worker in host.slice.workers]
    host.world.run(1)
    log.read()
    before, begin = device_time(host.slice.root), gpu_ns(host)
    host.world.run(2)
    records, end = log.read(), gpu_ns(host)
    after = device_time(host.slice.root)
    assert [record.sequence for record in records] == list(
        range(records[0].sequence, records[0].sequence + len(records))
    )
    times = [record.time for record in records]
    assert times == sorted(times) and times[-1] <= end
    seconds = had(records, begin, end)
    assert set(seconds) == set(pids)
    for pid in pids:
        assert seconds[pid] / 1e9 == pytest.approx(after.of(pid) - before.of(pid), abs=0.005)
    for one, other in zip(records, records[1:]):
        if one.kind == rmcalls.END:
            assert (other.kind, other.time - one.time) == (rmcalls.START, SWITCH) and other.pid != one.pid
        else:
            assert (other.kind, other.pid) == (rmcalls.END, one.pid)
            assert other.time - one.time == pytest.approx(2_048_000, abs=5000)


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


def test_a_lone_tenant_writes_nothing_until_it_is_stopped(host: Host) -> None:
    log = Log(host.client, host.subdevice)
    worker = host.worker(ns=1_000_000, batch=0)
    pid = worker.process.pid
    host.world.run(1)
    assert [(record.kind, record.pid) for record in log.read()] == [(rmcalls.START, pid)]
    host.world.run(1)
    assert log.read() == []
    begin = gpu_ns(host)
    assert host.stop(host.group(pid)) == 0
    host.world.run(0.01)
    (end,) = log.read()
    assert (end.kind, end.pid, end.time - begin) == (rmcalls.END, pid, pytest.approx(500_000, abs=1000))
    begin = gpu_ns(host)
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
    begin = gpu_ns(host)
    host.stop(host.group(pid))
    host.world.run(0.002)
    host.stop(host.group(pid), False)
    host.world.run(0.1)
    (end,) = log.read()
    assert (end.kind, end.time - begin) == (rmcalls.END, pytest.approx(500_000, abs=1000))


def test_a_cap_by_stops_and_starts(host: Host) -> None:
    """10 of each 100 ms, beside a tenant that always works: it has half of these, and the other one the rest."""
    capped, other = host.worker(ns=3_000_000_000, batch=0), host.worker(ns=1_000_000, batch=0)
    host.world.run(0.5)
    group = host.group(capped.process.pid)
    host.stop(group)
    host.world.run(0.1)
    before = device_time(host.slice.root)
    for _ in range(20):
        host.stop(group, False)
        host.world.run(0.010)
        host.stop(group)
        host.world.run(0.090)
    after = device_time(host.slice.root)
    pids = capped.process.pid, other.process.pid
    seconds = [after.of(pid) - before.of(pid) for pid in pids]
    # Half of 20 times 10.2 ms, and the rest.
    assert seconds[0] == pytest.approx(0.102, abs=0.02)
    assert sum(seconds) == pytest.approx(2, abs=0.005)


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
    before, begin = device_time(host.slice.root), gpu_ns(host)
    host.world.run(1)
    after = device_time(host.slice.root)
    assert after.of(other.process.pid) - before.of(other.process.pid) == pytest.approx(1, abs=0.003)
    assert had(log.read(), begin, gpu_ns(host)) == {}


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
    before, records, stops = device_time(host.slice.root), [], {pid: [(gpu_ns(host), True)] for pid in pids}
    for _ in range(60):
        pid = chance.choice(pids)
        if chance.random() < 0.2:
            tenants[pid].set_timeslice(held[pid].handle, chance.choice((100, 1000, 4000, 20_000)))
        else:
            on = chance.random() < 0.4
            stops[pid].append((gpu_ns(host) + (500_000 if on else 300_000), on))
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


def test_the_same_course_each_time(
    virtual: str, scratch: str, sim_root: Callable[..., str], shims: str, work: str, simrm: str
) -> None:
    """To the nanosecond, though the server answers in real time: two of three programs are stopped now and then."""

    def course(name: str, late: float) -> list[float]:
        directory = os.path.join(scratch, name)
        os.mkdir(directory)
        world = World(virtual, directory)
        world.late(late)
        slice_ = Capped(sim_root(), shims, work)
        slice_.workers, slice_.time = [], world
        with serve(slice_.root, simrm, world) as served:
            host = Host(slice_, served, world)
            workers = [host.worker(ns=300_000, batch=batch) for batch in (0, 1, 3)]
            world.run(0.5)
            held = [host.group(worker.process.pid) for worker in workers[1:]]
            for turn in range(20):
                host.stop(held[turn % 2], turn % 3 != 0)
                world.run(0.037)
            times = device_time(slice_.root)
            end_workers([slice_])
            host.client.close()
        world.end()
        return [times.total, *(times.of(worker.process.pid) for worker in workers)]

    assert course("first", 0) == course("other", 0.003)


def test_calls_take_their_time(host: Host) -> None:
    """A program in the world that stops another goes on when that is stopped."""
    worker = host.worker(ns=9_000_000_000, batch=0)
    host.world.run(0.5)
    group = host.group(worker.process.pid)
    code = (
        "import sys, time; sys.path[:0] = sys.argv[1:3]; from support.rmcalls import Client, SUBDEVICE\n"
        "client = Client(sys.argv[3])\n"
        "subdevice = client.alloc(client.device(), SUBDEVICE, bytes(4))\n"
        "channels = [(int(sys.argv[4]), int(sys.argv[5]) + 1 + i) for i in range(8)]\n"
        "for on in (True, False):\n"
        "    begin = time.monotonic_ns()\n"
        "    assert client.disable(subdevice, channels, on) == 0\n"
        "    print(time.monotonic_ns() - begin)\n"
    )
    words = [sys.executable, "-c", code, REPO, os.path.join(REPO, "tests"), host.served.path]
    said = host.world.output([*words, str(group.client), str(group.handle)], CLEAN_ENV)
    assert [int(line) for line in said.split()] == [
        pytest.approx(500_000, abs=5000),
        pytest.approx(300_000, abs=5000),
    ]
