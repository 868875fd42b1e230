"""The simulated driver's resource manager: what it answers, and what engines make of it, in virtual time."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator

import pytest
from support import rmcalls
from support.rmcalls import Client, Log
from support.simrm import Served, serve
from support.vgpucap import Capped, Worker
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
