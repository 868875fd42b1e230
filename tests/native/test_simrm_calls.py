"""What the simulated driver's resource manager answers, in real time: each call as a program makes it."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from types import NoneType

import pytest
from support import PATIENCE, rmcalls, until
from support.builds import kept
from support.rmcalls import Client, Failed, Log
from support.simdriver import SANITIZE, compile_program
from support.simdriver import Client as Program
from support.simrm import Served, serve

from nvc.base.errors import InputError
from nvc.testing.sim import SimSpec, create, destroy, state
from nvc.testing.sim.layout import STATE

STOP, START = 0.0005, 0.0003  # seconds


@pytest.fixture(params=["simrm", pytest.param("simrm_sanitized", marks=pytest.mark.nightly)])
def served(sim_root: Callable[..., str], request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server of two GPUs, also one that stops at a bad access."""
    with serve(sim_root(), request.getfixturevalue(request.param)) as made:
        yield made


def groups(served: Served) -> list[state.Group]:
    return state.groups(os.path.join(served.root, STATE))


def refused(status: int, call: Callable[[], object]) -> None:
    with pytest.raises(Failed) as failure:
        call()
    assert failure.value.status == status


class Tenant:
    """A client with a group of 8 channels that computes, as far as the resource manager knows."""

    def __init__(self, served: Served, channels: int = 8) -> None:
        self.client = Client(served.path)
        self.device = self.client.device()
        self.subdevice = self.client.alloc(self.device, rmcalls.SUBDEVICE, bytes(4))
        self.group = self.client.group(self.device)
        self.channels = [
            (self.client.handle, self.client.alloc(self.group, rmcalls.CHANNEL)) for _ in range(channels)
        ]


def test_objects_have_parents_and_names(served: Served) -> None:
    client, other = Client(served.path), Client(served.path)
    assert client.handle != other.handle and client.handle & 0xC0000000 == 0xC0000000
    refused(0x26, lambda: client.device(2))
    device = client.alloc(client.handle, rmcalls.DEVICE, struct.pack("<I52x", 1), 0xCAF00001, wide=True)
    assert device == 0xCAF00001
    refused(0x19, lambda: client.alloc(client.handle, rmcalls.DEVICE, bytes(56), device))
    refused(0x36, lambda: client.alloc(client.handle, rmcalls.SUBDEVICE, bytes(4)))
    refused(0x36, lambda: client.group(client.handle))
    refused(0x3D, lambda: client.alloc(device, rmcalls.GROUP))
    refused(0x56, lambda: client.alloc(device, 0x1234))
    refused(0x56, lambda: client.control(device, 0x801234, bytes(8)))
    refused(0x33, lambda: client.control(0x77, rmcalls.TIME, bytes(8)))
    refused(0x57, lambda: client.free(0x77))
    with pytest.raises(OSError, match="Invalid argument"):
        rmcalls.call(client.fd, 0x99, bytes(32))


def test_what_is_freed_takes_its_children(served: Served) -> None:
    tenant = Tenant(served)
    (group,) = groups(served)
    assert (group.client, group.handle, group.pid) == (tenant.client.handle, tenant.group, os.getpid())
    assert (group.partition, group.timeslice, group.channels, group.stopped) == (0, 2048, 8, 0)
    tenant.client.free(tenant.device)
    assert groups(served) == []
    refused(0x57, lambda: tenant.client.free(tenant.group))
    tenant.client.free(tenant.client.handle)
    refused(0x23, tenant.client.device)


def test_only_the_own_descriptor_sets_a_timeslice(served: Served) -> None:
    tenant, other = Tenant(served), Client(served.path)
    copies = tenant.client.group(tenant.device, rmcalls.COPY)
    assert (tenant.client.timeslice(tenant.group), tenant.client.timeslice(copies)) == (2048, 1024)
    for us in (1, 10_000_000):
        tenant.client.set_timeslice(tenant.group, us)
        assert tenant.client.timeslice(tenant.group) == us == groups(served)[0].timeslice
    for us in (0, 10_000_001):
        refused(0x1F, lambda us=us: tenant.client.set_timeslice(tenant.group, us))
    foreign = Client(served.path, os.dup(other.fd), tenant.client.handle)
    refused(0x23, lambda: foreign.set_timeslice(tenant.group, 5000))
    refused(0x3A, lambda: tenant.client.control(tenant.group, rmcalls.SET_TIMESLICE, bytes(4)))
    refused(0x56, lambda: tenant.client.control(tenant.group, 0xA06C0107, bytes(4)))


def test_scheduling_starts_nothing_that_is_stopped(served: Served) -> None:
    tenant, other = Tenant(served), Tenant(served)
    begin = other.client.control(other.subdevice, rmcalls.TIME, bytes(8))
    assert other.client.disable(other.subdevice, tenant.channels) == 0
    end = other.client.control(other.subdevice, rmcalls.TIME, bytes(8))
    assert struct.unpack("<Q", end)[0] - struct.unpack("<Q", begin)[0] >= STOP * 1e9
    for target, command, size in (
        (tenant.group, 0xA06C0101, 3),
        (tenant.group, 0xA06C0105, 8),
        (tenant.channels[0][1], 0xA06F0103, 3),
        (tenant.channels[0][1], 0xC36F0108, 4),
    ):
        tenant.client.control(target, command, bytes(size))
        assert [group.stopped for group in groups(served)] == [8, 0]
    assert other.client.disable(other.subdevice, tenant.channels[1:], False) == 0
    assert [group.stopped for group in groups(served)] == [1, 0]


def test_a_list_with_a_channel_that_is_gone_is_done_in_part(served: Served) -> None:
    tenant, other = Tenant(served, 64), Client(served.path)
    subdevice = other.alloc(other.device(), rmcalls.SUBDEVICE, bytes(4))
    tenant.client.free(tenant.channels[5][1])
    for on in (True, False):
        assert other.disable(subdevice, tenant.channels, on) == 0x21
        assert [group.stopped for group in groups(served)] == [63 * on]
    too_many = struct.pack("<B3xIBB6xQ128I", 1, 65, 0, 0, 0, *[0] * 128)
    assert other.try_control(subdevice, rmcalls.DISABLE, too_many)[0] == 0x1F


def test_the_last_descriptor_frees_its_clients(served: Served) -> None:
    """Of all processes that have it: a child has inherited it, and goes on when its parent closes it."""
    tenant = Tenant(served)
    child = os.fork()
    if child == 0:
        signal.pause()
    tenant.client.close()
    assert len(groups(served)) == 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: not groups(served), lambda: "the groups stay")


def test_a_call_that_hangs(served: Served) -> None:
    """Until the fault is off, or the server ends."""
    tenant = Tenant(served)
    served.fault("delay 600000")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(tenant.client.timeslice, tenant.group)
        with pytest.raises(TimeoutError):
            call.result(0.05)
        served.fault("none")
        assert call.result(PATIENCE) == 2048
        served.fault("delay 600000")
        call = pool.submit(tenant.client.timeslice, tenant.group)
        with pytest.raises(TimeoutError):
            call.result(0.05)
        assert served.stop() == 0
        assert isinstance(call.exception(PATIENCE), (OSError, NoneType))


def test_the_log_comes_by_itself(served: Served, client_program: str) -> None:
    """Without a flush, within 33 ms or so: mappings show what was written meanwhile."""
    tenant = Tenant(served)
    log = Log(tenant.client, tenant.subdevice)
    program = Program(client_program, served.root).start()
    program.call("time", "sim_spin_1ms", 1)
    records = []
    until(lambda: records.extend(log.look()) or records, lambda: "no record")
    assert [(one.kind, one.pid) for one in records] == [(rmcalls.START, program.pid)]
    program.kill()
    until(lambda: records.extend(log.look()) or len(records) == 2, lambda: "no end")
    assert (records[1].kind, records[1].pid) == (rmcalls.END, program.pid)


@pytest.mark.nightly  # with the sanitized build, which `make nightly-builds` has
def test_a_sanitized_driver_obeys(
    scratch: str, simdriver_sanitized: str, simrm_sanitized: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts come and go, kernels are stopped and go on, and libcuda does nothing that is undefined."""

    def build(directory: str) -> str:
        return compile_program(directory, simdriver_sanitized, ["simdriver_client.c"], "-O1", *SANITIZE)

    monkeypatch.setenv("NVC_SIMDRIVER", simdriver_sanitized)
    root = os.path.join(scratch, "sanitized")
    create(root, SimSpec(gpus=2))
    with serve(root, simrm_sanitized) as served:
        program = Program(kept("client-sanitized", build), root, ASAN_OPTIONS="detect_leaks=0")
        program.start()
        for device in (0, 1):
            program.call("another", device)
        (group,) = [
            one for one in groups(served) if one.handle == min(each.handle for each in groups(served))
        ]
        assert len(groups(served)) == 3
        tenant = Tenant(served)
        channels = [(group.client, group.handle + 1 + i) for i in range(group.channels)]
        program.send("time", "sim_spin_20ms", 3)
        assert tenant.client.disable(tenant.subdevice, channels) == 0
        assert tenant.client.disable(tenant.subdevice, channels, False) == 0
        assert float(program.receive()[0]) >= 60
        program.call("close-all")
        until(lambda: len(groups(served)) == 1, lambda: "its groups stay")
        program.call("launch", "sim_spin_20ms", 1)
        assert program.code("sync") == 719
        program.end()


def test_memory_is_for_reading(served: Served) -> None:
    tenant = Tenant(served)
    memory = tenant.client.memory(8192)
    refused(0x1D, lambda: tenant.client.map(memory, 8192, 0))
    refused(0x1F, lambda: tenant.client.map(memory, 12288))
    refused(0x33, lambda: tenant.client.map(tenant.group, 8192))
    first, second = tenant.client.map(memory, 8192), tenant.client.map(memory, 8192)
    tenant.client.free(memory)
    assert first[:] == second[:] == bytes(8192)
    log = Log(tenant.client, tenant.subdevice)
    assert log.read() == []
    refused(0x33, lambda: tenant.client.control(tenant.subdevice, rmcalls.BIND, bytes(24)))
    refused(0x1F, lambda: tenant.client.control(log.buffer, rmcalls.GET, struct.pack("<II", log.count, 0)))


def test_a_root_that_is_served_stays(served: Served) -> None:
    assert sorted(os.listdir(os.path.dirname(served.path))) == ["faults", "nvidiactl"]
    with pytest.raises(InputError, match="its resource manager runs"):
        destroy(served.root)
    Client(served.path).close()


def test_its_end_leaves_nothing(sim_root: Callable[..., str], simrm: str) -> None:
    root = sim_root()
    with pytest.raises(AssertionError), serve(root, simrm) as served:
        directory = os.path.dirname(served.path)
        tenant = Tenant(served)
        served.process.kill()
        served.process.wait()
    assert not os.path.ismount(directory) and os.listdir(directory) == []
    with pytest.raises(OSError):
        tenant.client.timeslice(tenant.group)
    with serve(root, simrm) as served:
        assert groups(served) == []
        Client(served.path).close()
    assert not os.path.ismount(directory)
