"""Shares of a device's time: from options and variables to the quota, and changed while the container runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from support import GIB, run
from support.bundle import Bundle
from support.configure import BASIC, Configure
from support.hook import Hook, ask
from support.vgpu import cli, limits_of, listed, shares_of

from nvc.model.slices.layout import NO_LIMIT, PAUSED
from nvc.slices.store import registry

NATIVE = (0, 1, "native", 0)
pytestmark = pytest.mark.usefixtures("shim")


@pytest.mark.parametrize(
    ("variables", "settings", "shares"),
    [
        ({"NVC_VGPU_CORES": "50", "NVC_VGPU_CORES_1": "100"}, "", [(50, 1, "fixed", 0), NATIVE]),
        ({}, 'vgpu-cores = 20\nvgpu-policy = "soft"', [(20, 1, "soft", 0)] * 2),
    ],
)  # fmt: skip
def test_variables_and_settings(
    hook: Callable[[], Hook], bundle: Bundle, variables: dict[str, str], settings: str, shares: list[Any]
) -> None:
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", **variables)
    made = hook()
    made.add_settings(settings)
    made.add(bundle)
    with bundle.created("runc") as container:
        assert shares_of(container.pid) == shares


def test_options_and_live_changes(bundle: Bundle, launcher: str, driver: str) -> None:
    with bundle.created("runc") as container:
        pid = str(container.pid)
        wanted = (*BASIC, "--vgpu-cores=50,25", "--vgpu-weight=3")
        shown = Configure(launcher, driver)(container.pid, bundle.rootfs, (*wanted, "--dry-run")).stdout
        assert "all of 81559 MiB; time: fixed, at most 25% of its time, weight 3" in " ".join(shown.split())
        Configure(launcher, driver)(container.pid, bundle.rootfs, wanted)
        assert shares_of(container.pid) == [(50, 3, "fixed", 0), (25, 3, "fixed", 0)]
        assert limits_of(container.pid) == [NO_LIMIT] * 2

        cli(launcher, "set", pid, "--cores=100,40")
        assert shares_of(container.pid) == [(0, 3, "weight", 0), (40, 3, "fixed", 0)]
        cli(launcher, "set", pid, "--device=1", "--policy=soft", "--weight=7", "--memory=1g")
        assert shares_of(container.pid) == [(0, 3, "weight", 0), (40, 7, "soft", 0)]
        assert limits_of(container.pid) == [NO_LIMIT, GIB]
        cli(launcher, "pause", pid, "--device=0")
        assert [share[3] for share in shares_of(container.pid)] == [PAUSED, 0]
        assert listed(launcher, container.pid)["devices"][0]["paused"]
        text = "soft (not enforced: nvcd is not running), at most 40% of its time, weight 7"
        assert text in cli(launcher, "show", pid).stdout
        cli(launcher, "pause", pid)
        cli(launcher, "resume", pid)
        assert [share[3] for share in shares_of(container.pid)] == [0, 0]


def test_only_root_sees_or_changes_anything(bundle: Bundle, launcher: str, driver: str) -> None:
    with bundle.created("runc") as container:
        Configure(launcher, driver)(container.pid, bundle.rootfs, (*BASIC, "--vgpu-cores=50"))
        before = shares_of(container.pid)
        slice_ = str(container.pid)
        for words in (
            ("set", slice_, "--cores=90"), ("pause", slice_), ("resume", slice_), ("rm", slice_, "--force"),
            ("show", slice_), ("ls",), ("top", "--once"), ("report", "--seconds=0.2"), ("policy",),
            ("policy", "0", "fair"), ("policy", "0", "--reset"), ("run", "--memory=1g", "--", "true"),
        ):  # fmt: skip
            done = run(launcher, f"--root={driver}", "vgpu", *words, check=False, user=65534, group=65534)
            assert done.returncode == 1 and "only root can" in done.stderr, (words, done.stderr)
        assert shares_of(container.pid) == before
        assert os.stat(registry.base_directory()).st_mode & 0o022 == 0
