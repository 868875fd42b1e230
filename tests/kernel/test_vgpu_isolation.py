"""Slices isolated by MIG: a device for each, the smallest that will do, and never one that is in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import GIB
from support.configure import BASIC, Configure
from support.programs import Programs
from support.vgpu import cli, entry_of, limits_of

from nvc.testing.sim.report import report

#: A GPU of two MIG devices, of about 10 and 40 GiB.
pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=1, mig=("1g.10gb,3g.40gb",))]


@pytest.fixture
def mig(driver: str) -> list[str]:
    """UUIDs, the smaller device first."""
    return [mig.uuid for mig in sorted(report(driver).gpus[0].mig, key=lambda mig: mig.memory)]


def used(pid: int) -> list[str]:
    """The devices that the slice of a process may use."""
    return [device.uuid for device, limit in zip(entry_of(pid).devices, limits_of(pid)) if limit]


def test_each_gets_the_smallest_that_is_free(programs: Programs, mig: list[str]) -> None:
    assert used(programs.start("--isolation=mig", "--memory=4g")) == [mig[0]]
    assert used(programs.start("--isolation=mig", "--cores=50")) == [mig[1]]
    text = programs.refused("--isolation=mig", "--memory=9g")
    assert "no free MIG device of at least 9 GiB: 0 are too small, 2 are taken" in text


def test_a_larger_one_where_the_smallest_does_not_do(programs: Programs, mig: list[str]) -> None:
    pid = programs.start("--isolation=mig", "--memory=20g")
    assert used(pid) == [mig[1]] and 20 * GIB in limits_of(pid)
    text = programs.refused("--isolation=mig", "--memory=20g")
    assert "1 are too small, 1 are taken" in text


def test_nobody_else_gets_in(programs: Programs, mig: list[str]) -> None:
    programs.start("--isolation=mig", "--memory=4g")
    assert "reserved for one slice" in programs.refused(f"--device={mig[0]}", "--memory=1g")
    for _ in range(2):
        programs.start(
            f"--device={mig[1]}", "--memory=4g"
        )  # without isolation a MIG device is shared like any other


def test_a_container_keeps_its_own(runc_bundle: Any, launcher: str, driver: str, mig: list[str]) -> None:
    configure = Configure(launcher, driver)
    with runc_bundle().created("runc") as container:
        wanted = (*BASIC, "--isolation=mig", "--vgpu-memory=4g")
        for _ in range(2):
            configure(container.pid, container.bundle.rootfs, wanted)
            assert used(container.pid) == [mig[0]] and limits_of(container.pid) == [4 * GIB]
        assert cli(launcher, "show", str(container.pid)).returncode == 0


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--isolation=wall", "--memory=1g"), "--isolation: wall: want mig, mps or kernel"),
        (("--isolation=mps", "--device=0:0,0:1"), "isolation by MPS: 2 devices; an MPS server has one"),
        (("--isolation=mig", "--memory=10%"), "--memory: 10%: a part of which MIG device?"),
        (("--isolation=mig", "--memory=1g,2g"), "isolation takes one MIG device"),
        (("--isolation=mig", "--memory=60g"), "2 are too small, 0 are taken"),
    ],
)
def test_refused(programs: Programs, words: tuple[str, ...], cause: str) -> None:
    assert cause in programs.refused(*words)


def test_no_mig_no_fence(launcher: str, sim_root: Callable[..., str]) -> None:
    text = Programs(launcher, sim_root()).refused("--isolation=mig", "--memory=1g")
    assert "none of the selected GPUs has MIG devices; create some with `nvidia-smi mig`" in text
