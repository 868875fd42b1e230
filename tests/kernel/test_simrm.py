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

from nvc.kernel.rm import Rm
from nvc.testing.sim.layout import STATE


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
