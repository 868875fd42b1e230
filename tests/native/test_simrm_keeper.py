"""nvcd's timekeeper on the simulated resource manager: its own code, from quotas to calls, in virtual time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, REPO
from support.simrm_host import SWITCH, Host
from support.vgpucap import Worker
from support.virtual import device_time

PERIOD = 100_000_000
#: Without nvcd: no self-test and no tracer, and the plan comes once.
KEEP = """
import json, select, sys, time
sys.path.insert(0, sys.argv[1])
from nvc.daemon.keeper.keeper import Keeper, alive
from nvc.daemon.keeper.plan import DevicePlan, Group, Plan, SlicePlan
from nvc.kernel import rm

class Driver:
    def __init__(self, path):
        self.path, self.rm = path, rm.Rm.open(path)
    def subdevice(self, uuid):
        return self.rm.subdevice(next(one.instance for one in self.rm.devices() if one.uuid == uuid))
    def set_timeslice(self, fd, client, group, us):
        return rm.set_timeslice(fd, client, group, us)
    def get_timeslice(self, fd, client, group):
        return rm.get_timeslice(fd, client, group)
    def borrow(self, pid, number):
        return rm.borrow(pid, number, self.path)

wanted = json.loads(sys.argv[3])
def read(group, **fields):
    return SlicePlan(groups=(Group(**{**group, "channels": tuple(group["channels"])}),), **fields)

slices = [read(**one) for one in wanted["slices"]]
keeper = Keeper(lambda: Driver(sys.argv[2]), time.monotonic_ns, alive)
keeper.apply(Plan((DevicePlan(wanted["uuid"], tuple(slices)),)))
while True:
    due = keeper.step(time.monotonic_ns())
    select.select([], [], [], max(0, min(due - time.monotonic_ns(), 100_000_000)) / 1e9)
"""


@pytest.fixture
def keep(host: Host) -> Iterator[Callable[..., None]]:
    """Factory: `keep({worker: {"quota_ns": 1}})` starts a timekeeper, with these fields of each SlicePlan."""
    started: list[subprocess.Popen[str]] = []

    def start(wanted: dict[Worker, dict[str, object]]) -> None:
        slices = []
        for number, (worker, fields) in enumerate(wanted.items()):
            group = host.group(worker.process.pid)
            channels = [channel for _, channel in host.channels(group)]
            known = {"client": group.client, "handle": group.handle, "pid": group.pid, "channels": channels}
            fd = host.descriptor(group.pid)
            slices.append({"key": str(number), "group": {**known, "fd": fd}, **fields})
        plan = json.dumps({"uuid": host.slice.uuids[0], "slices": slices})
        words = [sys.executable, "-c", KEEP, REPO, host.served.path, plan]
        started.append(host.world.start(words, CLEAN_ENV))

    yield start
    for process in started:
        assert process.poll() is None, "the timekeeper has ended"
        host.world.kill(process)


def tenants(host: Host, *ns: int) -> list[Worker]:
    variables = host.slice.environment(NVC_SIM_SWITCH_NS=str(SWITCH))
    variables["LD_LIBRARY_PATH"] = host.slice.real_directory()
    for one in ns:
        arguments = {"ns": one, "batch": 0, "seconds": 600, "warm": 0}
        host.slice.workers.append(Worker(host.slice.tool, variables, time=host.world, **arguments))
    host.world.run(0.5)
    return host.slice.workers[-len(ns) :]


def shares(host: Host, workers: list[Worker], seconds: float) -> list[float]:
    """Percent of this time, once what it had before the first look is paid back, ten quotas at most."""
    host.world.run(1.5)
    before = device_time(host.slice.root)
    host.world.run(seconds)
    after = device_time(host.slice.root)
    pids = [worker.process.pid for worker in workers]
    return [100 * (after.of(pid) - before.of(pid)) / seconds for pid in pids]


@pytest.mark.parametrize("ns", [1_000_000, 3_000_000_000])
def test_a_cap_alone(host: Host, keep: Callable[..., None], ns: int) -> None:
    (worker,) = tenants(host, ns)
    keep({worker: {"quota_ns": PERIOD // 10, "period_ns": PERIOD, "burst_ns": PERIOD // 10}})
    assert shares(host, [worker], 3) == [pytest.approx(10, abs=0.3)]


def test_a_cap_beside_one_that_always_works(host: Host, keep: Callable[..., None]) -> None:
    capped, other = tenants(host, 20_000_000, 1_000_000)
    keep(
        {
            capped: {"quota_ns": PERIOD // 10, "period_ns": PERIOD, "timeslice_us": 4000},
            other: {"timeslice_us": 4000},
        }
    )
    got = shares(host, [capped, other], 3)
    assert got == [pytest.approx(10, abs=0.3), pytest.approx(89, abs=1)]


def test_weights(host: Host, keep: Callable[..., None]) -> None:
    workers = tenants(host, 1_000_000, 1_000_000, 20_000_000)
    keep({worker: {"timeslice_us": us} for worker, us in zip(workers, (1000, 2000, 4000))})
    got = shares(host, workers, 3)
    whole = 100 * 7 / (7 + 3 * SWITCH / 1e6)
    assert got == [pytest.approx(whole * part / 7, abs=0.5) for part in (1, 2, 4)]


def test_who_is_stopped_stays_so(host: Host, keep: Callable[..., None]) -> None:
    stopped, other = tenants(host, 1_000_000, 1_000_000)
    keep({stopped: {"stopped": True}, other: {}})
    assert shares(host, [stopped, other], 1) == [0, pytest.approx(100, abs=0.3)]
