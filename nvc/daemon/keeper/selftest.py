"""Whether time can be kept from outside on this host, with this driver: tried with a process of our own.

A process without rights runs kernels. It has to be in the tracer's table and in the switch log, to stop, to go
on, and to take a timeslice. Only what was seen counts: a driver of another version may have other structures.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable

from nvc.base.errors import NvcError
from nvc.base.value import Value
from nvc.daemon.keeper.cuda import Runner, Spinner
from nvc.daemon.keeper.plan import Group
from nvc.daemon.keeper.table import Table
from nvc.kernel import rm as driver
from nvc.kernel.objects import Object
from nvc.kernel.rm import Record, Rm, RmDevice, Subdevice, SwitchLog
from nvc.kernel.rm_abi import words
from nvc.kernel.tracer import Tracer
from nvc.slices.make.calibrate import Libraries

KERNEL = 1_000_000  # nanoseconds that a kernel takes, about
FIRST_ROUNDS = 10_000  # of its loop
LASTS = 60.0  # seconds after which the process ends, whatever becomes of us
PATIENCE = 10.0  # for what has to happen
QUIET = 0.05  # in which nothing may run after a stop
IN_FLIGHT = 1  # kernels whose end may be seen after a stop: it was before it
TIMESLICE = 3000  # µs, which is no driver's default
_COUNT, _END = struct.Struct("<Q"), 8


class SelfTest(Value):
    """`why`: what failed, or ""."""

    ok: bool
    why: str


class _Failed(Exception):
    pass


def run(tracer: Tracer, rm: Rm, device: RmDevice, libraries: Libraries, control: str) -> SelfTest:
    """Try everything on a device. `control`: the path of nvidiactl. Never raises."""
    log = None
    try:
        subdevice = rm.subdevice(device.instance)
        log = subdevice.log()
        with mmap.mmap(-1, mmap.PAGESIZE) as shared:
            with Runner(libraries, device.uuid, lambda cuda, runs: _work(cuda, runs, shared)) as runner:
                try:
                    return _try(tracer, subdevice, log, device, runner.pid, shared, control)
                finally:
                    shared[_END] = 1
    except (_Failed, NvcError, OSError) as error:
        return SelfTest(False, str(error))
    finally:
        if log is not None:
            log.close()


def _work(cuda: Spinner, runs: Callable[[], None], shared: mmap.mmap) -> None:
    """In the process without rights: kernels one after another, counted when they have ended."""
    runs()
    rounds = FIRST_ROUNDS
    for _ in range(3):  # the first ones run while the clock goes up
        begin = time.monotonic_ns()
        cuda.run(rounds)
        rounds = max(1, rounds * KERNEL // max(1, time.monotonic_ns() - begin))
    until, count = time.monotonic() + LASTS, 0
    while not shared[_END] and time.monotonic() < until:
        cuda.run(rounds)
        count += 1
        _COUNT.pack_into(shared, 0, count)


def _try(
    tracer: Tracer,
    subdevice: Subdevice,
    log: SwitchLog,
    device: RmDevice,
    pid: int,
    shared: mmap.mmap,
    control: str,
) -> SelfTest:
    def done() -> int:
        return int(_COUNT.unpack_from(shared, 0)[0])

    _wait(lambda: done() > 0, "no kernel of ours ended")
    groups = computing(tracer.objects(), pid, device.instance)
    names = [(group.client, channel) for group in groups for channel in group.channels]
    if not names:
        raise _Failed(f"the tracer saw {len(groups)} groups and no channel of our process")
    records: list[Record] = []
    _wait(lambda: _seen(log, records, pid), "the switch log does not name our process")
    try:
        _stop(subdevice, names, done)
        _ok(subdevice.start(names), "start our channels")
        before = done()
        _wait(lambda: done() > before + IN_FLIGHT, "our kernels did not go on after a start")
    finally:
        subdevice.start(names)
    records.clear()
    _wait(
        lambda: _seen(log, records, pid) and {each.kind for each in records} >= {driver.START, driver.END},
        "the switch log does not show a stop and a start",
    )
    for group in groups:
        _timeslice(group, control)
    return SelfTest(True, "")


def computing(objects: tuple[Object, ...], pid: int, instance: int) -> tuple[Group, ...]:
    """The groups of a process that compute on a device."""
    table = Table()
    table.load(objects)
    return tuple(each for each in table.groups().get(instance, ()) if each.pid == pid)


def _stop(subdevice: Subdevice, names: list[tuple[int, int]], done: Callable[[], int]) -> None:
    _ok(subdevice.stop(names), "stop our channels")
    time.sleep(QUIET / 5)
    before = done()
    time.sleep(QUIET)
    ran = done() - before
    if ran > IN_FLIGHT:
        raise _Failed(f"{ran} kernels ended in {QUIET * 1000:.0f} ms after a stop")


def _timeslice(group: Group, control: str) -> None:
    fd = driver.borrow(group.pid, group.fd, control)
    try:
        status, before = driver.get_timeslice(fd, group.client, group.handle)
        _ok(status, "read a timeslice")
        _ok(driver.set_timeslice(fd, group.client, group.handle, TIMESLICE), "set a timeslice")
        status, now = driver.get_timeslice(fd, group.client, group.handle)
        _ok(status, "read a timeslice")
        if now != TIMESLICE:
            raise _Failed(f"a timeslice of {TIMESLICE} µs was set, and {now} are read")
        _ok(driver.set_timeslice(fd, group.client, group.handle, before), "set a timeslice")
    finally:
        os.close(fd)


def _seen(log: SwitchLog, records: list[Record], pid: int) -> bool:
    """Whether the log names a process; what it says of it is added to `records`."""
    found, _ = log.read()
    records += [each for each in found if each.pid == pid]
    return bool(records)


def _ok(status: int, what: str) -> None:
    if status:
        raise _Failed(f"{what}: {words(status)}")


def _wait(condition: Callable[[], bool], why: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise _Failed(why)
        time.sleep(0.002)
