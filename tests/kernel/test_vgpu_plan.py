"""What a plan with a slice says is what is applied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from support import GIB
from support.vgpu import entry_of

import nvc
from nvc.base.errors import SourceChanged
from nvc.base.program import Silent
from nvc.model.request import Request, SliceRequest
from nvc.model.slices.entry import RegistryError
from nvc.model.slices.policy import POLICIES
from nvc.model.slices.sizes import parse_size
from nvc.plan.describe import describe
from nvc.plan.ops import Plan
from nvc.slices.make import shim as shims
from nvc.slices.policy import policies
from nvc.slices.store.limits import read_quota
from nvc.testing.sim.report import report

FAIR, WEIGHT, NATIVE = (POLICIES.index(name) for name in ("fair", "weight", "native"))


@pytest.fixture(autouse=True)
def installed(shim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process finds the shim where an installed nvc does."""
    monkeypatch.setattr(shims, "directory", lambda: os.path.dirname(shim))


@pytest.fixture
def uuid(driver: str) -> Iterator[str]:
    """GPU 0, without a policy in the end."""
    found = report(driver).gpus[0].uuid
    yield found
    policies.write(found, policies.DevicePolicy())


def asked(**more: Any) -> Request:
    wanted = SliceRequest(memory=(parse_size("--memory", "4GiB"),), **more)
    return Request(devices=("0",), capabilities=("compute",), vgpu=wanted, cgroups=False)


class Changing(Silent):
    """Another operator, who gives a GPU another policy each time that a plan has been made."""

    def __init__(self, uuid: str, *changes: int) -> None:
        self.uuid = uuid
        self.changes = list(changes)
        self.planned: list[int] = []

    def plan(self, plan: Plan) -> None:
        assert plan.slice is not None
        self.planned.append(plan.slice.devices[0].policy)
        if self.changes:
            policies.write(self.uuid, policies.DevicePolicy(policy=self.changes.pop(0)))


def test_a_policy_that_changes_meanwhile_is_planned_again(
    runc_bundle: Any, debian: str, driver: str, uuid: str
) -> None:
    log, bundle = Changing(uuid, FAIR), runc_bundle(debian)
    with bundle.created("runc") as container, nvc.Driver(nvc.DriverOptions(root=driver), log=log) as found:
        found.configure(nvc.Container(container.pid, bundle.rootfs), asked())
        (device,) = read_quota(entry_of(container.pid))
    assert log.planned == [NATIVE, FAIR] and device.policy == FAIR


def test_a_policy_that_is_removed_meanwhile_is_planned_again(
    runc_bundle: Any, debian: str, driver: str, uuid: str
) -> None:
    policies.write(uuid, policies.DevicePolicy(policy=FAIR))
    log, bundle = Changing(uuid, policies.NONE), runc_bundle(debian)
    with bundle.created("runc") as container, nvc.Driver(nvc.DriverOptions(root=driver), log=log) as found:
        found.configure(nvc.Container(container.pid, bundle.rootfs), asked())
        (device,) = read_quota(entry_of(container.pid))
    assert log.planned == [FAIR, NATIVE] and device.policy == NATIVE


def test_one_that_changes_again_is_told(runc_bundle: Any, debian: str, driver: str, uuid: str) -> None:
    log, bundle = Changing(uuid, FAIR, WEIGHT), runc_bundle(debian)
    with bundle.created("runc") as container, nvc.Driver(nvc.DriverOptions(root=driver), log=log) as found:
        with pytest.raises(SourceChanged, match=f"{uuid}: its policy was changed meanwhile"):
            found.configure(nvc.Container(container.pid, bundle.rootfs), asked())
        assert entry_of(container.pid) is None


def test_a_plan_that_would_be_refused_is_refused(
    runc_bundle: Any, debian: str, driver: str, uuid: str
) -> None:
    policies.write(uuid, policies.DevicePolicy(max_instances=1))
    first, second = runc_bundle(debian), runc_bundle(debian)
    with (
        first.created("runc") as one,
        second.created("runc") as other,
        nvc.Driver(nvc.DriverOptions(root=driver)) as found,
    ):
        found.configure(nvc.Container(one.pid, first.rootfs), asked())
        with pytest.raises(RegistryError, match="1 slice on it, of at most 1"):
            found.plan(nvc.Container(other.pid, second.rootfs), asked())
        assert found.plan(nvc.Container(one.pid, first.rootfs), asked()).slice is not None


@pytest.mark.driver(gpus=1, mig=("7g.80gb",))
def test_the_plan_says_what_isolation_chose(runc_bundle: Any, debian: str, driver: str) -> None:
    bundle = runc_bundle(debian)
    with bundle.created("runc") as container, nvc.Driver(nvc.DriverOptions(root=driver)) as found:
        held = nvc.Container(container.pid, bundle.rootfs)
        plan = found.plan(held, asked(isolation="mig"))
        assert "isolated by MIG: the smallest free MIG device that fits" in " ".join(describe(plan).split())
        found.configure(held, asked(isolation="mig"))
        (device,) = read_quota(entry_of(container.pid))
    assert plan.slice is not None
    assert [device.uuid] == [one.uuid for one in plan.slice.devices] and device.memory_limit == 4 * GIB
