"""A simulated GPU with a resource manager and programs on it, in virtual time."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator

import pytest

from nvc.testing.sim.layout import STATE

from . import rmcalls
from .rmcalls import Client
from .simrm import Group, Served, groups, serve
from .vgpucap import Capped, Worker
from .virtual import World

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

    def groups(self) -> list[Group]:
        return groups(os.path.join(self.slice.root, STATE))

    def group(self, pid: int) -> Group:
        (found,) = [one for one in self.groups() if one.pid == pid]
        return found

    def worker(self, **arguments: object) -> Worker:
        return self.slice.native(seconds=600, warm=0, **arguments)

    def channels(self, group: Group) -> list[tuple[int, int]]:
        """libcuda's handles are one after the other."""
        return [(group.client, group.handle + 1 + i) for i in range(group.channels)]

    def stop(self, group: Group, on: bool = True) -> int:
        return self.client.disable(self.subdevice, self.channels(group), on)

    def now(self) -> int:
        """The GPU's timer, ns."""
        return int(struct.unpack("<Q", self.client.control(self.subdevice, rmcalls.TIME, bytes(8)))[0])

    def descriptor(self, pid: int) -> int:
        """The number that the driver's file has in a process."""
        device = os.stat(self.served.path).st_dev
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.stat(f"/proc/{pid}/fd/{name}").st_dev == device:
                return int(name)
        raise AssertionError("no descriptor")

    def tenants(self, worker: Worker, group: Group) -> Client:
        """The tenant's client, by its own descriptor."""
        process = os.pidfd_open(worker.process.pid)
        fd = libc.syscall(PIDFD_GETFD, process, self.descriptor(worker.process.pid), 0)
        os.close(process)
        return Client(self.served.path, fd, group.client)


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
        made.client.close()
