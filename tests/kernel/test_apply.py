"""A hand-written plan, applied to real containers: what they see, and what stays when something fails."""

from __future__ import annotations

import os
from typing import Any

import pytest

from nvc.apply.executor import apply_plan
from nvc.kernel import LinuxKernel
from nvc.model import Identity
from nvc.plan.ops import BindDevice, BindFile, LoaderEntry, Plan, Symlink, Tmpfs, UpdateLoaderCache
from nvc.target import open_target
from support.prestart import at_prestart

LIBS = "/usr/lib/x86_64-linux-gnu"


def identity(path: str) -> Identity:
    st = os.stat(path)
    return Identity(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns)


def plan_of(driver: str, *more: Any) -> Plan:
    ops: list[Any] = [Tmpfs("/proc/driver", ("nvidia",), (("nvidia/version", b"NVRM version: test\n"),))]
    links, entries = [], []
    for number in range(20):
        path = f"/lib/libt{number}.so.1.0"
        os.makedirs(f"{driver}/lib", exist_ok=True)
        with open(driver + path, "wb") as out:
            out.write(b"library %d" % number)
        target = f"{LIBS}/libt{number}.so.1.0"
        ops.append(BindFile(path, target, identity(driver + path)))
        links.append(Symlink(f"libt{number}.so.1.0", f"{LIBS}/libt{number}.so.1", target))
        entries.append(LoaderEntry(f"libt{number}.so.1", f"{LIBS}/libt{number}.so.1", "x86_64"))
    os.makedirs(f"{driver}/dev", exist_ok=True)
    os.mknod(f"{driver}/dev/nvidia0", 0o20666, os.makedev(195, 0))
    ops.append(BindDevice("/dev/nvidia0", "/dev/nvidia0", 195, 0))
    return Plan(driver, driver, driver, "test", (), (*ops, *more, *links, UpdateLoaderCache(tuple(entries))))


def apply(plan: Plan, pid: int, rootfs: str) -> Any:
    kernel = LinuxKernel()
    target = open_target(kernel, pid, rootfs)
    try:
        return apply_plan(kernel, plan, target)
    finally:
        target.close()


SHOW = (
    f"cat {LIBS}/libt7.so.1; echo; cat /proc/driver/nvidia/version; ls -l /dev/nvidia0; "
    "ldconfig -p | grep -c libt; grep -c ' /usr/lib/x86_64-linux-gnu/libt' /proc/self/mountinfo; "
    f"echo x >> {LIBS}/libt7.so.1; touch {LIBS}/new && echo writable"
)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
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
    assert lines[4] == "20"
    assert ("writable" in lines) is not readonly
    assert "Read-only file system" in done.stderr or "can't create" in done.stderr


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_running_container_and_second_run(runc_bundle: Any, scratch: str, runtime: str, readonly: bool) -> None:
    bundle = runc_bundle()
    bundle.config["root"]["readonly"] = readonly
    plan = plan_of(f"{scratch}/driver")
    with bundle.created(runtime) as container:
        assert apply(plan, container.pid, bundle.rootfs).changes > 40
        before = container_mounts(container.pid)
        container.start()
        assert container.exec(f"cat {LIBS}/libt3.so.1").stdout == "library 3"
        assert apply(plan, container.pid, bundle.rootfs).changes == 0
        assert container_mounts(container.pid) == before


def container_mounts(pid: int) -> list[str]:
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8") as lines:
        return [line.split()[4] for line in lines]
