"""What engines make of the simulated resource manager: stops, switch logs, ends; nvc's calls: tests/kernel."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from support import until
from support.simdriver import Program, environment
from support.simrm import Group, Served, serve
from support.simrm import groups as all_groups
from support.vgpucap import Capped, Worker
from support.virtual import World, device_time

from nvc.base.errors import InputError, RmError
from nvc.kernel import rm
from nvc.kernel.rm import END, START, Record, Rm
from nvc.testing.sim import SimSpec, create, destroy
from nvc.testing.sim.layout import STATE

SWITCH = 150_000


def groups(root: str) -> list[Group]:
    return all_groups(os.path.join(root, STATE))


def channels(group: Group) -> list[tuple[int, int]]:
    """libcuda's handles are one after the other."""
    return [(group.client, group.handle + 1 + i) for i in range(group.channels)]


def client(served: Served) -> Rm:
    return Rm.open(served.path, driver=f"{served.root}/proc/driver/nvidia")


class Host:
    """A simulated GPU with its resource manager, and an own client that stops others."""

    def __init__(self, slice_: Capped, served: Served, world: World) -> None:
        self.slice, self.served, self.world = slice_, served, world
        self.rm = client(served)
        self.gpu = self.rm.subdevice(0)

    def groups(self) -> list[Group]:
        return groups(self.slice.root)

    def group(self, pid: int) -> Group:
        (found,) = [one for one in self.groups() if one.pid == pid]
        return found

    def worker(self, **arguments: object) -> Worker:
        return self.slice.native(seconds=600, warm=0, **arguments)

    def stop(self, group: Group, on: bool = True) -> int:
        return (self.gpu.stop if on else self.gpu.start)(channels(group))

    def descriptor(self, pid: int) -> int:
        """A copy of the descriptor that a process has of the driver's file."""
        device = os.stat(self.served.path).st_dev
        names = os.listdir(f"/proc/{pid}/fd")
        number = next(int(name) for name in names if os.stat(f"/proc/{pid}/fd/{name}").st_dev == device)
        return rm.borrow(pid, number, self.served.path)


@pytest.fixture
def host(capped: Callable[..., Capped], simrm: str, world: World) -> Iterator[Host]:
    """One in a world; `host.worker(**words)` starts programs of tests/native/vgpu_work.c without the shim."""
    slice_ = capped()
    with serve(slice_.root, simrm, world) as served:
        made = Host(slice_, served, world)
        yield made
        for worker in slice_.workers:
            worker.kill()
        slice_.workers.clear()
        made.rm.close()


def regions(records: Sequence[Record]) -> list[tuple[int, int]]:
    """From when to when somebody had the GPU."""
    assert [one.kind for one in records] == [START, END] * (len(records) // 2)
    return [(one.time_ns, other.time_ns) for one, other in zip(records[::2], records[1::2])]


def test_a_stopped_kernel_ends_right(host: Host, tool: str) -> None:
    """By the events around it, 9 s and the 2 s of the stop; what comes behind it in its stream has run."""
    tenant = Program([tool], environment(host.slice.root), time=host.world).start()
    tenant.do("alloc a 4", "write a 7")
    tenant.send("time sim_spin_9000ms 1")
    host.world.run(4)
    group = host.group(tenant.pid)
    assert host.stop(group) == 0
    host.world.run(2)
    assert host.stop(group, False) == 0
    # The stop takes 0.5 ms to hold, and the start 0.3.
    assert float(tenant.receive()[1]) == pytest.approx(11_000 - 0.2, abs=0.05)
    assert tenant.ask("read a") == ["7"]
    assert device_time(host.slice.root).of(tenant.pid) == pytest.approx(9, abs=1e-6)
    tenant.kill()


def test_who_is_killed_leaves_nothing(host: Host) -> None:
    """Also while it is stopped: its groups go, its region ends, and the other one has the GPU."""
    log = host.gpu.log()
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
    before = device_time(host.slice.root)
    host.world.run(1)
    after = device_time(host.slice.root)
    assert after.of(other.process.pid) - before.of(other.process.pid) == pytest.approx(1, abs=0.003)
    assert log.read() == ([], 0)
    log.close()


def test_who_closes_the_drivers_file_loses_its_channels(host: Host, tool: str) -> None:
    """That is no way to leave a stop: what it has on the GPU fails."""
    tenant = Program([tool], environment(host.slice.root), time=host.world).start()
    tenant.do("spin sim_spin_10ms 1")
    tenant.do("closefrom")
    until(lambda: not host.groups(), lambda: "its groups stay")
    assert tenant.code("spin sim_spin_10ms 1") in (0, 719)
    assert tenant.code("wait") == 719
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


def test_an_idle_context_keeps_no_other_from_being_stopped(host: Host, tool: str) -> None:
    tenant = Program([tool], environment(host.slice.root), time=host.world).start()
    tenant.do("context c 0", "primary 0")
    working, idle = sorted(host.groups(), key=lambda group: group.handle)
    assert (working.client, working.slot) == (idle.client, idle.slot)
    host.stop(idle)
    host.world.run(0.001)
    assert float(tenant.ask("time sim_spin_10ms 1")[0]) == pytest.approx(10, abs=0.1)
    host.stop(idle, False)
    host.stop(working)
    host.world.run(0.001)
    tenant.send("time sim_spin_10ms 1")
    host.world.run(0.5)
    host.stop(working, False)
    assert float(tenant.receive()[1]) == pytest.approx(510, abs=1)
    tenant.kill()


def test_nvcd_is_told_how_many_it_missed(host: Host) -> None:
    """By gaps in the sequence, and by the driver where there was no room: each once."""
    for _ in range(2):
        host.worker(ns=1_000_000, batch=0)
    log = host.gpu.log()
    host.world.run(0.1)
    records, lost = log.read()
    assert {one.kind for one in records} == {START, END} and lost == 0
    host.served.fault("drop 3")
    host.world.run(0.01)
    records, lost = log.read()
    assert records and lost == 3
    host.served.fault("none")
    host.world.run(30)
    records, lost = log.read()
    room = 508 * 32 - 1  # but for what was read lately, of which the driver is told once an eighth is
    assert room * 7 // 8 < len(records) <= room and lost > 0
    host.world.run(0.01)
    assert log.read()[1] == 0
    log.close()


@pytest.mark.parametrize("busy", [True, False])
def test_a_lone_tenant_writes_nothing_until_it_is_stopped(host: Host, busy: bool) -> None:
    """Also one that is idle then, and is started again before anybody looks."""
    log = host.gpu.log()
    worker = host.worker(ns=1_000_000, **({"batch": 0} if busy else {"batch": 1, "idle": 100}))
    pid = worker.process.pid
    host.world.run(1)
    assert [(record.kind, record.pid) for record in log.read()[0]] == [(START, pid)]
    host.world.run(1)
    assert log.read() == ([], 0)
    begin = host.gpu.now()
    host.stop(host.group(pid))
    host.world.run(0.002)
    host.stop(host.group(pid), False)
    host.world.run(0.01)
    found, _ = log.read()
    assert [one.kind for one in found] == ([END, START] if busy else [END])
    for one, at in zip(found, (500_000, 2_300_000)):
        assert one.time_ns - begin == pytest.approx(at, abs=1000)
    log.close()


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
    log = host.gpu.log()
    host.world.run(0.3)
    held = {pid: host.group(pid) for pid in pids}
    files = {pid: host.descriptor(pid) for pid in pids}
    for pid in pids:
        assert host.stop(held[pid]) == 0
    host.world.run(0.002)
    log.read()
    before, records = device_time(host.slice.root), list[Record]()
    stops = {pid: [(host.gpu.now(), True)] for pid in pids}
    for _ in range(60):
        pid = chance.choice(pids)
        if chance.random() < 0.2:
            us = chance.choice((100, 1000, 4000, 20_000))
            assert rm.set_timeslice(files[pid], held[pid].client, held[pid].handle, us) == 0
        else:
            on = chance.random() < 0.4
            stops[pid].append((host.gpu.now() + (500_000 if on else 300_000), on))
            assert host.stop(held[pid], on) == 0
        host.world.run(chance.choice((0.0006, 0.002, 0.01, 0.05)))
        found, lost = log.read()
        assert not lost
        records += found
    for pid in pids:
        host.stop(held[pid])
    host.world.run(0.01)
    records += log.read()[0]
    log.close()
    after = device_time(host.slice.root)
    everybody = regions(records)
    assert all(one[1] <= other[0] for one, other in zip(everybody, everybody[1:]))
    assert {record.pid for record in records} <= set(pids)
    for pid in pids:
        os.close(files[pid])
        had = regions([record for record in records if record.pid == pid])
        total = sum(end - start for start, end in had) / 1e9
        assert total == pytest.approx(after.of(pid) - before.of(pid), abs=1e-6)
        for (at, on), (until_, _) in zip(stops[pid], stops[pid][1:]):
            bad = [one for one in had if on and one[1] > at + 100 and one[0] < until_ - 100]
            assert not bad, (at, until_, bad)


@pytest.mark.nightly  # with the sanitized build, which `make nightly-builds` has
def test_a_sanitized_driver_obeys(
    scratch: str, simdriver_sanitized: str, simrm_sanitized: str, tool_sanitized: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Contexts come and go, kernels are stopped and go on; libcuda and the server do nothing undefined."""

    monkeypatch.setenv("NVC_SIMDRIVER", simdriver_sanitized)
    root = os.path.join(scratch, "sanitized")
    create(root, SimSpec(gpus=2))
    with serve(root, simrm_sanitized) as served:
        program = Program([tool_sanitized], environment(root, ASAN_OPTIONS="detect_leaks=0")).start()
        for device in (0, 1):
            program.do(f"context c {device}")
        assert len(groups(root)) == 3
        ours = client(served)
        gpu = ours.subdevice(0)
        log = gpu.log()
        first = min(groups(root), key=lambda group: group.handle)
        program.do("primary 0").send("time sim_spin_20ms 3")
        assert gpu.stop(channels(first)) == gpu.start(channels(first)) == 0
        assert float(program.receive()[1]) >= 60
        assert gpu.stop([*channels(first), (first.client, 0x77)]) == 0x21
        log.read()
        log.close()
        ours.close()
        program.do("closefrom")
        until(lambda: not groups(root), lambda: "its groups stay")
        program.do("spin sim_spin_20ms 1")
        assert program.code("wait") == 719
        program.end()


def test_its_end_leaves_nothing(sim_root: Callable[..., str], simrm: str) -> None:
    root = sim_root()
    with pytest.raises(AssertionError), serve(root, simrm) as served:
        directory = os.path.dirname(served.path)
        with pytest.raises(InputError, match="its resource manager runs"):
            destroy(root)
        gpu = client(served).subdevice(0)
        served.process.kill()
        served.process.wait()
    assert not os.path.ismount(directory) and os.listdir(directory) == []
    with pytest.raises(RmError):
        gpu.now()
    with serve(root, simrm) as served:
        assert groups(root) == []
    assert not os.path.ismount(directory)
