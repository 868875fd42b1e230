"""The simulated driver's resource manager where slices and containers are, and nvcd's own code before it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
from support.bundle import Container
from support.simrm import Served, groups, serve, simrm  # noqa: F401
from support.vgpucap import Worker
from support.virtual import World, device_time

from nvc.base.errors import RmError
from nvc.daemon.keeper.driver import RmDriver
from nvc.discovery import discover
from nvc.kernel import LinuxKernel
from nvc.kernel.rm import Rm
from nvc.model.request import DriverOptions
from nvc.slices.make.calibrate import Libraries, libraries_of
from nvc.testing.sim.layout import STATE
from nvc.testing.sim.report import report


def libraries(root: str) -> Libraries:
    return libraries_of(discover(LinuxKernel(), DriverOptions(root=root)))


def test_the_self_test_of_nvcd_passes(served: Served, bpffs: str) -> None:
    """With the tracer in the kernel: what runs, stops, goes on and takes a timeslice is a program on libcuda."""
    driver = RmDriver(served.path, (), served.root, libraries(served.root), bpffs)
    for gpu in report(served.root).gpus:
        assert driver.subdevice(gpu.uuid).instance == gpu.index


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("fail 2080110b 56", "stop our channels: not supported"),
        ("fail a06c0103 56", "cuDevicePrimaryCtxRetain: CUDA error 304"),  # each context sets one
        ("drop 1000", "does not name our process"),
    ],
)
def test_it_fails_where_the_driver_does(
    served: Served,
    bpffs: str,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    why: str,
) -> None:
    monkeypatch.setattr("nvc.daemon.keeper.selftest.PATIENCE", 0.5)
    driver = RmDriver(served.path, (), served.root, libraries(served.root), bpffs)
    served.fault(fault)
    with pytest.raises(RmError, match=why):
        driver.subdevice(report(served.root).gpus[0].uuid)


def test_containers_have_it(
    driver: str,
    simrm: str,  # noqa: F811
    container: Callable[..., Container],
    stage: str,
) -> None:
    """Those that start while it is served, though an earlier one got the same: libcuda makes objects there."""

    def begins(made: Container) -> bool:
        shutil.copy(f"{stage}/lib/nvc/simdriver/vector_add", f"{made.bundle.rootfs}/vector_add")
        return bool(made.exec("/vector_add 100", check=False).returncode == 0)

    before = container()
    with serve(driver, simrm) as served:
        made = container()
        assert begins(made)
        served.fault("fail a06c 1a")
        assert begins(before) and not begins(made)
    assert begins(made)


def test_a_slice_is_stopped_from_outside(
    served_in_world: Served, tenant: Callable[..., Worker], world: World
) -> None:
    """By a client of another process, whatever its shim does; the process is named as the host knows it."""
    worker = tenant("--cores=100")
    world.run(0.5)
    pid = world.pid(worker.process)
    (group,) = [one for one in groups(os.path.join(served_in_world.root, STATE)) if one.pid == pid]
    rm = Rm.open(served_in_world.path, (), os.path.join(served_in_world.root, "proc/driver/nvidia"))
    subdevice = rm.subdevice(0)
    channels = [(group.client, group.handle + 1 + i) for i in range(group.channels)]
    assert subdevice.stop(channels) == 0
    world.run(0.01)
    before = device_time(served_in_world.root).total
    world.run(1)
    assert device_time(served_in_world.root).total == before
    assert subdevice.start(channels) == 0
    world.run(1)
    assert device_time(served_in_world.root).total - before == pytest.approx(1, abs=0.01)
    rm.close()
