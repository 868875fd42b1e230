"""nvc.kernel.rm against the simulated driver's resource manager."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.simrm import Served
from support.tracing import Caller, build_calls

from nvc.base.errors import RmError
from nvc.kernel import rm
from nvc.kernel.rm import Rm


@pytest.fixture
def ours(served: Served) -> Iterator[Rm]:
    made = Rm.open(served.path, driver=f"{served.root}/proc/driver/nvidia")
    yield made
    made.close()


class Tenant:
    """A program with a client, a group that computes, and channels in it."""

    def __init__(self, served: Served, channels: int = 3, device: int = 0) -> None:
        self.program = Caller(build_calls("64"), served.path)
        self.program.expect("ready")
        self.client = self.alloc("0 0 0 65 0")
        parent = self.alloc(f"{self.client} {self.client} 0 128 {device}")
        self.group = self.alloc(f"{self.client} {parent} 0 41068 1")
        self.channels = [self.alloc(f"{self.client} {self.group} 0 51311 1") for _ in range(channels)]
        self.names = [(self.client, channel) for channel in self.channels]

    def alloc(self, words: str) -> int:
        name, status, handle = self.program.ask(f"alloc plain {words}")
        assert (name, status) == ("alloc", "0")
        return int(handle)


@pytest.fixture
def tenant(served: Served) -> Iterator[Tenant]:
    made = Tenant(served)
    with made.program.process:
        yield made
        made.program.process.kill()


def test_devices_are_told_with_their_uuids_and_minors(ours: Rm, served: Served) -> None:
    found = ours.devices()
    assert [each.instance for each in found] == [0, 1]
    minors = rm.read_minors(f"{served.root}/proc/driver/nvidia")
    assert {each.uuid: each.minor for each in found} == minors and len(minors) == 2


def test_channels_stop_and_start(ours: Rm, tenant: Tenant) -> None:
    subdevice = ours.subdevice(0)
    assert subdevice.stop(tenant.names) == 0
    assert subdevice.start(tenant.names) == 0
    assert subdevice.stop([]) == 0
    gone = (tenant.client, 0x77)
    assert subdevice.stop([*tenant.names, gone]) == 0x21
    assert subdevice.start(tenant.names) == 0


def test_more_channels_than_a_call_takes_are_split(ours: Rm, served: Served) -> None:
    many = Tenant(served, channels=130)
    with many.program.process:
        subdevice = ours.subdevice(0)
        assert subdevice.stop(many.names) == 0
        assert subdevice.start([*many.names[:60], (many.client, 0x77), *many.names[60:]]) == 0x21
        many.program.process.kill()


def test_timeslices_are_set_by_the_tenants_own_descriptor(ours: Rm, tenant: Tenant, served: Served) -> None:
    fd = rm.borrow(tenant.program.pid, 3, served.path)
    assert rm.get_timeslice(fd, tenant.client, tenant.group) == (0, 2048)
    assert rm.set_timeslice(fd, tenant.client, tenant.group, 4000) == 0
    assert rm.get_timeslice(fd, tenant.client, tenant.group) == (0, 4000)
    assert rm.set_timeslice(fd, tenant.client, 0x77, 4000) == 0x33
    os.close(fd)
    with open(served.path, "r+b", buffering=0) as other:
        assert rm.set_timeslice(other.fileno(), tenant.client, tenant.group, 4000) == 0x23
    with pytest.raises(RmError, match="it is not of"):
        rm.borrow(tenant.program.pid, 1, served.path)


def test_the_timer_goes_on(ours: Rm) -> None:
    subdevice = ours.subdevice(1)
    first = subdevice.now()
    assert subdevice.now() > first
    with pytest.raises(RmError, match=r"open device 9: .*: invalid device \(RM status 0x26\)"):
        ours.subdevice(9)


def test_a_log_is_empty_until_somebody_works(ours: Rm) -> None:
    subdevice = ours.subdevice(0)
    log = subdevice.log()
    assert log.read() == ([], 0)
    log.close()
    again = subdevice.log()
    assert again.read() == ([], 0)
    again.close()


@pytest.mark.parametrize(
    ("step", "said"),
    (
        (0x90CE, "allocate the log's header"),
        (0x90CD, "make the event buffer"),
        (0x90CD0101, "enable the event buffer"),
        (0x20801238, "bind the switch log"),
        (0x20800403, "read the GPU's timer"),
        (0x201, "list GPUs"),
        (0x275, "identify GPU"),
        (0x80, "open device 0"),
    ),
)
def test_a_refusal_names_the_step(ours: Rm, served: Served, step: int, said: str) -> None:
    served.fault(f"fail {step:x} 56")
    with pytest.raises(RmError, match=rf"{said}.*not supported \(RM status 0x56\)"):
        ours.devices()
        subdevice = ours.subdevice(0)
        subdevice.now()
        subdevice.log()
    served.fault("none")
