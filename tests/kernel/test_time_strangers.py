"""A program in no slice beside one in a slice, by on-stranger: nvcd with a simulated resource manager."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from support import until
from support.nvcd import Place, eventually
from support.nvcd_programs import started
from support.simrm import Group, Served, groups
from support.vgpucap import Worker

from nvc.daemon.keeper.plan import NATIVE_US
from nvc.testing.sim.layout import STATE

#: nvcd sees all programs of the host, so those of other tests, too. Few of them use this GPU.
GPU = 2 + os.getpid() % 30

pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=32)]


def of(served: Served, pid: int) -> Group:
    known = groups(os.path.join(served.root, STATE))
    (found,) = [one for one in known if (one.pid, one.partition) == (pid, 9 * GPU)]
    return found


def stranger_of(sliced: Any) -> int:
    """A program in no slice that uses the GPU."""
    program = sliced()
    assert program.code(f"primary {GPU}")[0] == 0
    return int(program.process.pid)


def test_as_one_more_tenant(
    served: Served, place: Place, driver: str, sliced: Any, busy: Callable[..., Worker]
) -> None:
    started(place, driver, '[nvcd]\non-stranger = "slice"\n')
    stranger = stranger_of(sliced)
    worker = busy("--policy=weight", "--weight=3", device=GPU, seconds=600).started()
    state = eventually(place, lambda s: bool(s["devices"]) and len(s["devices"][0]["had"]) == 2)
    (device,) = state["devices"]
    assert device["strangers"] == [stranger]
    lengths = {one["key"] == "strangers": one["timesliceUs"] for one in device["had"]}
    assert lengths == {True: 2000, False: 6000}
    until(lambda: of(served, stranger).timeslice == 2000)
    assert not of(served, stranger).stopped
    worker.kill()
    until(lambda: of(served, stranger).timeslice == NATIVE_US)


def test_stopped_while_slices_are_there(
    served: Served, place: Place, driver: str, sliced: Any, busy: Callable[..., Worker]
) -> None:
    started(place, driver, '[nvcd]\non-stranger = "stop"\n')
    stranger = stranger_of(sliced)
    worker = busy("--policy=weight", device=GPU, seconds=600).started()
    until(lambda: of(served, stranger).stopped == of(served, stranger).channels)
    worker.kill()
    until(lambda: not of(served, stranger).stopped)
