"""A hand-written plan, applied to real containers: what they see, and what stays when something fails."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.plans import LIBS, apply, identity, mount_at, mounts, plan_of, snapshot
from support.prestart import at_prestart

from nvc.apply.executor import apply_plan
from nvc.apply.target import open_target
from nvc.base.errors import SourceChanged
from nvc.kernel import LinuxKernel
from nvc.plan.ops import BindFile

SHOW = (
    f"cat {LIBS}/libt7.so.1; echo; cat /proc/driver/nvidia/version; ls -l /dev/nvidia0; "
    f"busybox tr '\\0' '\\n' < /etc/ld.so.cache | grep -c '^{LIBS}/libt'; "
    "grep -c ' /usr/lib/x86_64-linux-gnu/libt' /proc/self/mountinfo; "
    f"echo x >> {LIBS}/libt7.so.1; touch {LIBS}/new && echo writable"
)


@pytest.mark.parametrize(("runtime", "readonly"), [("runc", False), ("crun", True)])
def test_prestart(runc_bundle: Any, scratch: str, runtime: str, readonly: bool) -> None:
    bundle = runc_bundle()
    bundle.config["root"]["readonly"] = readonly
    with at_prestart(bundle, runtime, f"{SHOW}; true") as held:
        assert apply(plan_of(f"{scratch}/driver"), held.pid, held.rootfs).changes > 40
        done = held.release()
    lines = done.stdout.splitlines()
    assert lines[0] == "library 7"
    assert lines[1] == "NVRM version: test"
    assert "195" in lines[2] and lines[2].startswith("c")
    assert lines[3:5] == ["20", "20"]
    assert ("writable" in lines) is not readonly
    assert "Read-only file system" in done.stderr or "can't create" in done.stderr


@pytest.mark.parametrize(("runtime", "readonly"), [("runc", True), ("crun", False)])
def test_running_container_and_second_run(
    runc_bundle: Any, scratch: str, runtime: str, readonly: bool
) -> None:
    bundle = runc_bundle()
    bundle.config["root"]["readonly"] = readonly
    plan = plan_of(f"{scratch}/driver")
    with bundle.created(runtime) as container:
        assert apply(plan, container.pid, bundle.rootfs).changes > 40
        before = mounts(container.pid)
        container.start()
        assert container.exec(f"cat {LIBS}/libt3.so.1").stdout == "library 3"
        assert apply(plan, container.pid, bundle.rootfs).changes == 0
        assert mounts(container.pid) == before


class WithoutLinks(BindFile):
    """A bind with an option more, MOUNT_ATTR_NOSYMFOLLOW."""

    @property
    def attributes(self) -> int:
        return super().attributes | 0x200000


def test_a_second_run_does_not_take_a_mount_with_fewer_options(runc_bundle: Any, scratch: str) -> None:
    """Also not for an option of which statvfs(3) says nothing."""
    bundle, driver, target = runc_bundle(), f"{scratch}/driver", f"{LIBS}/libt3.so.1.0"
    plan = plan_of(driver)
    source = f"/lib/{target.rpartition('/')[2]}"
    with bundle.created("runc") as container:
        apply(plan, container.pid, bundle.rootfs)
        assert "nosymfollow" not in mount_at(container.pid, target)
        wanted = WithoutLinks(source, target, identity(driver + source))
        assert apply(plan.replace(ops=(wanted,)), container.pid, bundle.rootfs).changes == 1
        now = [line for line in mounts(container.pid) if line.split()[2].endswith(target)][-1]
        assert "nosymfollow" in now


def test_a_file_of_the_driver_that_is_removed_meanwhile(runc_bundle: Any, scratch: str) -> None:
    """The plan is stale, and nothing is wrong with the image."""
    bundle, kernel, plan = runc_bundle(), LinuxKernel(), plan_of(f"{scratch}/driver")
    library = f"{scratch}/driver/lib/libt7.so.1.0"
    with bundle.created("runc") as container, open_target(kernel, container.pid, bundle.rootfs) as target:
        before = mounts(container.pid), snapshot(bundle.rootfs)

        def remove(stage: str) -> None:
            if stage == "open sources":
                os.link(library, f"{library}-old")
                os.unlink(library)

        with pytest.raises(SourceChanged, match=f"{LIBS}/libt7.so.1.0: removed since"):
            apply_plan(kernel, plan, target, done=remove)
        assert (mounts(container.pid), snapshot(bundle.rootfs)) == before
