"""The timekeeper with nvc's own calls of the driver, on the simulated one, in virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support.nightly import few
from support.simrm import Served, groups
from support.vgpucap import Worker
from support.virtual import World, device_time

from nvc.daemon.keeper.keeper import Keeper, alive
from nvc.daemon.keeper.plan import DevicePlan, Group, Plan, SlicePlan
from nvc.kernel import rm
from nvc.model.slices.policy import MS
from nvc.testing.sim.layout import STATE

UUID = "GPU-any"


class OneGpu:
    """The first GPU of the simulated driver; it was tried out elsewhere."""

    def __init__(self, served: Served) -> None:
        self.path = served.path
        self.rm = rm.Rm.open(served.path, (), os.path.join(served.root, "proc/driver/nvidia"))
        self.first = self.rm.subdevice(0)

    def subdevice(self, uuid: str) -> rm.Subdevice:
        return self.first

    def set_timeslice(self, fd: int, client: int, group: int, us: int) -> int:
        return rm.set_timeslice(fd, client, group, us)

    def get_timeslice(self, fd: int, client: int, group: int) -> tuple[int, int]:
        return rm.get_timeslice(fd, client, group)

    def borrow(self, pid: int, number: int) -> int:
        return rm.borrow(pid, number, self.path)

    def let_go(self) -> None:
        raise AssertionError("it has a plan")


def group_of(served: Served, world: World, worker: Worker) -> Group:
    pid = world.pid(worker.process)
    (found,) = [one for one in groups(os.path.join(served.root, STATE)) if one.pid == pid]
    channels = tuple(found.handle + 1 + number for number in range(found.channels))
    return Group(found.client, found.handle, pid, control_of(pid), channels)


def control_of(pid: int) -> int:
    """The descriptor of the driver's control file by which a process made its first objects."""
    names = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    return next(name for name in names if os.readlink(f"/proc/{pid}/fd/{name}").count("/nvidiactl"))


def keep(world: World, keeper: Keeper, seconds: float) -> None:
    """Let the timekeeper keep time so long."""
    end = world.now_ns + int(seconds * 1e9)
    while (now := world.now_ns) < end:
        due = min(keeper.step(now), end)
        world.run(max((due - world.now_ns) / 1e9, 0.00005))


@pytest.mark.parametrize("kernel", few([1_000_000, 20_000, 50_000_000], 3))
def test_a_cap_holds_beside_another(
    served_in_world: Served, tenant: Callable[..., Worker], world: World, kernel: int
) -> None:
    one, other = tenant("--cores=100", ns=kernel), tenant("--cores=100")
    world.run(1)
    capped, free = group_of(served_in_world, world, one), group_of(served_in_world, world, other)
    gpu = OneGpu(served_in_world)
    keeper = Keeper(lambda: gpu, lambda: world.now_ns, alive)
    quota = 20 * MS
    slices = (
        SlicePlan("a", (capped,), 0, False, quota, 100 * MS, quota),
        SlicePlan("b", (free,)),
    )
    keeper.apply(Plan((DevicePlan(UUID, slices),)))
    keep(world, keeper, 1)
    before = device_time(served_in_world.root)
    keep(world, keeper, 4)
    after = device_time(served_in_world.root)
    had = [after.of(group.pid) - before.of(group.pid) for group in (capped, free)]
    assert had[0] / 4 == pytest.approx(0.20, abs=0.01) and had[1] / 4 > 0.7, had
    account = keeper.account(0).devices[0]
    assert not account.problem and not account.failed and account.lost == 0
    assert {pid: had for pid, had, _ in account.pids}[capped.pid] / 1e9 == pytest.approx(1.0, abs=0.1)
    keeper.close()
    gpu.rm.close()
    before = device_time(served_in_world.root)
    world.run(1)
    assert device_time(served_in_world.root).of(capped.pid) - before.of(capped.pid) > 0.3, (
        "started in the end"
    )


def test_timeslices_divide_the_time(
    served_in_world: Served, tenant: Callable[..., Worker], world: World
) -> None:
    one, other = tenant("--cores=100"), tenant("--cores=100", ns=20_000_000)
    world.run(1)
    light, heavy = group_of(served_in_world, world, one), group_of(served_in_world, world, other)
    gpu = OneGpu(served_in_world)
    keeper = Keeper(lambda: gpu, lambda: world.now_ns, alive)
    slices = (SlicePlan("a", (light,), 2000), SlicePlan("b", (heavy,), 6000))
    keeper.apply(Plan((DevicePlan(UUID, slices),)))
    keep(world, keeper, 1)
    before = device_time(served_in_world.root)
    keep(world, keeper, 4)
    after = device_time(served_in_world.root)
    had = [after.of(group.pid) - before.of(group.pid) for group in (light, heavy)]
    assert had[0] / sum(had) == pytest.approx(0.25, abs=0.01), had
    assert not keeper.account(0).devices[0].failed
    keeper.close()
    gpu.rm.close()
