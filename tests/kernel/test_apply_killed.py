"""The applier is killed on entry to one system call after another; nothing half-done survives the next run."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from support import CLEAN_ENV, REPO, need, run
from support.nightly import few
from support.plans import LIBS, apply, mounts, plan_of, snapshot
from support.prestart import at_prestart

from nvc.base.errors import NvcError
from nvc.plan.ops import Symlink

#: System calls with an effect, each with the occurrences at which the applier is killed.
CALLS = {
    "setns": (1,),
    "fsmount": (1,),
    "mkdirat": (1,),
    "move_mount": (2, 22),
    "symlinkat": (1, 20),
    "renameat": (1,),
    "renameat2": (1,),
    "dup": (1,),  # the loader cache is in its place
}
MOMENTS = [(call, when) for call, occurrences in CALLS.items() for when in occurrences]


@pytest.fixture
def rootfs_before(rootfs: Any) -> str:
    """A rootfs with something of every kind to replace."""
    path: str = rootfs()
    os.makedirs(path + LIBS, exist_ok=True)
    os.symlink("libt3.so.0.9", f"{path}{LIBS}/libt3.so.1")
    with open(f"{path}{LIBS}/libt4.so.1.0", "w", encoding="ascii") as out:
        out.write("stale\n")
    return path


def killed(held: Any, driver: str, call: str, when: int, *mode: str) -> Any:
    """Run the plan in a process of its own whose applier gets SIGKILL at the `when`th `call`."""
    env = {**CLEAN_ENV, "PYTHONPATH": f"{REPO}:{REPO}/tests"}
    return run(
        need("strace"), "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
        "-e", f"inject={call}:signal=SIGKILL:when={when}",
        sys.executable, "-m", "support.apply_once", driver, str(held.pid), held.rootfs, *mode,
        check=False, env=env,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "when"), [m for m in MOMENTS if m[0] in ("fsmount", "mkdirat", "move_mount", "dup")]
)
def test_the_caller_repairs_at_once(
    runc_bundle: Any, rootfs_before: str, scratch: str, call: str, when: int
) -> None:
    with at_prestart(runc_bundle(rootfs_before), "runc", "true") as held:
        before = snapshot(held.rootfs), mounts(held.pid)
        done = killed(held, f"{scratch}/driver", call, when)
        assert done.returncode == 1, (done.returncode, done.stderr)
        assert "configure container" in done.stderr
        assert (snapshot(held.rootfs), mounts(held.pid)) == before


@pytest.mark.parametrize(("call", "when"), few(MOMENTS, 2))
def test_the_next_run_repairs(
    runc_bundle: Any, rootfs_before: str, scratch: str, call: str, when: int
) -> None:
    with at_prestart(
        runc_bundle(rootfs_before), "runc", f"cat {LIBS}/libt3.so.1; cat {LIBS}/libt4.so.1"
    ) as held:
        before = snapshot(held.rootfs), mounts(held.pid)
        done = killed(held, f"{scratch}/driver", call, when, "die")
        assert done.returncode == 9, (done.returncode, done.stderr)
        plan = plan_of(f"{scratch}/driver")
        refused = plan.replace(ops=(Symlink("anything", "/etc"),))
        with pytest.raises(NvcError):
            apply(refused, held.pid, held.rootfs)
        assert (snapshot(held.rootfs), mounts(held.pid)) == before
        assert apply(plan, held.pid, held.rootfs).changes > 40
        assert apply(plan, held.pid, held.rootfs).changes == 0
        assert held.release().stdout == "library 3library 4"


def test_a_repair_that_is_killed_loses_no_link(runc_bundle: Any, rootfs_before: str, scratch: str) -> None:
    with at_prestart(runc_bundle(rootfs_before), "runc", "true") as held:
        before = snapshot(held.rootfs), mounts(held.pid)
        for call, when in (("dup", 1), ("symlinkat", 1), ("renameat", 1)):
            done = killed(held, f"{scratch}/driver", call, when, "die")
            assert done.returncode == 9, (done.returncode, done.stderr)
        refused = plan_of(f"{scratch}/driver").replace(ops=(Symlink("anything", "/etc"),))
        with pytest.raises(NvcError):
            apply(refused, held.pid, held.rootfs)
        assert (snapshot(held.rootfs), mounts(held.pid)) == before


def test_a_mount_of_somebody_else_is_not_undone(runc_bundle: Any, scratch: str) -> None:
    """The container was given the very file that nvc would mount there, and mounting fails."""
    bundle = runc_bundle()
    plan_of(f"{scratch}/driver")
    name = "libt0.so.1.0"
    volume = {"destination": f"{LIBS}/{name}", "source": f"{scratch}/driver/lib/{name}"}
    bundle.config["mounts"].append({**volume, "type": "bind", "options": ["bind", "rw"]})
    with at_prestart(bundle, "runc", "true") as held:
        before = mounts(held.pid)
        assert sum(name in line for line in before) == 1
        done = run(
            need("strace"), "-f", "-qq", "-o", "/dev/null", "-e", "trace=move_mount",
            "-e", "inject=move_mount:error=EIO:when=2",
            sys.executable, "-m", "support.apply_once", f"{scratch}/driver", str(held.pid), held.rootfs,
            check=False, env={**CLEAN_ENV, "PYTHONPATH": f"{REPO}:{REPO}/tests"},
        )  # fmt: skip
        assert done.returncode == 1 and f"{LIBS}/{name}: input/output error" in done.stderr
        assert mounts(held.pid) == before
