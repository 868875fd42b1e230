"""User namespaces: a container in one under a rootful runtime, and a whole runtime inside one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

import pytest
from support import CLEAN_ENV, REPO, need, run
from support.plans import LIBS, apply, plan_of, snapshot
from support.prestart import at_prestart

from nvc.base.errors import NvcError

SHOW = (
    f"cat {LIBS}/libt7.so.1; echo; cat /proc/driver/nvidia/version; ls -ln /dev/nvidia0 | cut -c1; "
    f"busybox tr '\\0' '\\n' < /etc/ld.so.cache | grep -c '^{LIBS}/libt'; "
    f"stat -c %u:%g {LIBS}/libt7.so.1 /etc/ld.so.cache"
)


def chown_all(directory: str, owner: int) -> None:
    for base, directories, files in os.walk(directory):
        for name in (*directories, *files):
            os.lchown(os.path.join(base, name), owner, owner)
    os.lchown(directory, owner, owner)


@pytest.mark.parametrize(("runtime", "readonly"), [("runc", True), ("crun", False)])
def test_container_in_a_user_namespace(runc_bundle: Any, scratch: str, runtime: str, readonly: bool) -> None:
    bundle = runc_bundle()
    chown_all(bundle.rootfs, 100000)
    bundle.user_namespace()
    bundle.config["root"]["readonly"] = readonly
    with at_prestart(bundle, runtime, SHOW) as held:
        plan = plan_of(f"{scratch}/driver")
        assert apply(plan, held.pid, held.rootfs).changes > 40
        assert apply(plan, held.pid, held.rootfs).changes == 0
        lines = held.release().stdout.splitlines()
    assert lines == ["library 7", "NVRM version: test", "c", "20", "0:0", "0:0"]
    assert os.lstat(f"{bundle.rootfs}{LIBS}/libt7.so.1").st_uid == 100000


@pytest.mark.parametrize("destination", [LIBS, "/etc"])
@pytest.mark.parametrize("owner", [0, 100000])
def test_a_volume_that_its_root_cannot_write(
    runc_bundle: Any, scratch: str, destination: str, owner: int
) -> None:
    """The root of the container owned the loader cache there, then."""
    bundle = runc_bundle()
    chown_all(bundle.rootfs, 100000)
    bundle.user_namespace()
    path = shutil.copytree(f"{bundle.rootfs}/etc", f"{scratch}/volume")
    chown_all(path, owner)
    mount = {"destination": destination, "type": "bind", "source": path, "options": ["bind", "rw"]}
    bundle.config["mounts"].append(mount)
    with bundle.created("runc") as container:
        before = snapshot(path)
        if owner:
            assert apply(plan_of(f"{scratch}/driver"), container.pid, bundle.rootfs).changes > 40
            return
        with pytest.raises(NvcError, match="not to the root of this one"):
            apply(plan_of(f"{scratch}/driver"), container.pid, bundle.rootfs)
        assert snapshot(path) == before


def test_rootless_runtime(runc_bundle: Any, scratch: str) -> None:
    """The runtime, its hook and the container all inside one user namespace that is not the host's."""
    bundle = runc_bundle()
    driver, report = f"{scratch}/driver", f"{scratch}/report"
    plan_of(driver)
    environment = [f"PYTHONPATH={REPO}:{REPO}/tests", "PATH=/usr/bin:/bin"]
    arguments = ["python", "-m", "support.apply_hook", driver, report]
    bundle.hook("prestart", sys.executable, arguments, env=environment)
    for mount in bundle.config["mounts"]:
        # Group 5 of devpts is not mapped in there, nor is a sysfs of another network namespace mountable.
        mount["options"] = [option for option in mount["options"] if not option.startswith("gid=")]
    bundle.write(SHOW)
    inside = (
        "mount -t tmpfs none /sys/fs/cgroup; "
        f"exec {need('crun')} --root {bundle.directory}/state --cgroup-manager=disabled run "
        f"--bundle {bundle.directory} nvc-rootless-{os.getpid()}"
    )
    bundle._for_runtime("crun")
    bundle.write(SHOW)
    done = run(
        need("unshare"), "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc",
        "/bin/sh", "-c", inside, check=False, env=CLEAN_ENV,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["library 7", "NVRM version: test", "c", "20", "0:0", "0:0"]
    with open(report, encoding="utf-8") as text:
        assert json.load(text)["changes"] > 40
