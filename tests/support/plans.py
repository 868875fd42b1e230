"""A hand-written plan over a few files, for tests of the applier alone, and what to compare before and after."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from nvc.apply.executor import Outcome, apply_plan
from nvc.apply.target import open_target
from nvc.kernel import LinuxKernel
from nvc.model.facts import Identity
from nvc.plan.ops import BindDevice, BindFile, LoaderEntry, Plan, Symlink, Tmpfs, UpdateLoaderCache

LIBS = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = 20


def identity(path: str) -> Identity:
    """The identity of a file as discovery would record it."""
    st = os.stat(path)
    return Identity(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns)


def plan_of(driver: str, *more: Any) -> Plan:
    """A plan with a tmpfs, 20 libraries with links, a device node and the loader cache; its files are in `driver`.

    `more` are operations between the nodes and the links.
    """
    ops: list[Any] = [Tmpfs("/proc/driver", ("nvidia",), (("nvidia/version", b"NVRM version: test\n"),))]
    links, entries = [], []
    os.makedirs(f"{driver}/lib", exist_ok=True)
    os.makedirs(f"{driver}/dev", exist_ok=True)
    for number in range(LIBRARIES):
        path = f"/lib/libt{number}.so.1.0"
        if not os.path.exists(driver + path):
            with open(driver + path, "wb") as out:
                out.write(b"library %d" % number)
        target = f"{LIBS}/libt{number}.so.1.0"
        ops.append(BindFile(path, target, identity(driver + path)))
        links.append(Symlink(f"libt{number}.so.1.0", f"{LIBS}/libt{number}.so.1", target))
        entries.append(LoaderEntry(f"libt{number}.so.1", f"{LIBS}/libt{number}.so.1", "x86_64"))
    if not os.path.exists(f"{driver}/dev/nvidia0"):
        os.mknod(f"{driver}/dev/nvidia0", 0o20666, os.makedev(195, 0))
    ops.append(BindDevice("/dev/nvidia0", "/dev/nvidia0", 195, 0))
    return Plan(driver, driver, driver, "test", (), (*ops, *more, *links, UpdateLoaderCache(tuple(entries))))


def apply(plan: Plan, pid: int, rootfs: str, timeout: float = 10.0) -> Outcome:
    """Apply a plan to a container; the outcome is returned, NvcError raised."""
    kernel = LinuxKernel()
    with open_target(kernel, pid, rootfs) as target:
        return apply_plan(kernel, plan, target, timeout)


def mounts(pid: int) -> list[str]:
    """Mount points of a process, with their options and sources."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8") as lines:
        return [" ".join(line.split()[2:]) for line in lines]


def on_host(path: str) -> tuple[Any, ...]:
    """The mounts at and below a path of the host, and the files."""
    return [line for line in mounts(os.getpid()) if f" {path}" in line], snapshot(path)


def mount_at(pid: int, path: str) -> str:
    """The only one that ends with `path`."""
    found = [line for line in mounts(pid) if line.split()[2].endswith(path)]
    assert len(found) == 1, found
    return found[0]


def exchange(one: str, other: str) -> None:
    """Swap two names atomically: renameat2(2) with RENAME_EXCHANGE."""
    at_cwd, rename_exchange = -100, 2
    assert ctypes.CDLL(None).renameat2(at_cwd, one.encode(), at_cwd, other.encode(), rename_exchange) == 0


def snapshot(directory: str) -> dict[str, tuple[Any, ...]]:
    """Every entry below a directory: kind, mode, owner, and content or link text. Mounts are not entered."""
    found: dict[str, tuple[Any, ...]] = {}
    device = os.lstat(directory).st_dev
    pending = [directory]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                st = entry.stat(follow_symlinks=False)
                name = os.path.relpath(entry.path, directory)
                detail: Any = None
                if entry.is_symlink():
                    detail = os.readlink(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    with open(entry.path, "rb") as content:
                        detail = content.read()
                elif entry.is_dir(follow_symlinks=False) and st.st_dev == device:
                    pending.append(entry.path)
                found[name] = (st.st_mode, st.st_uid, st.st_gid, detail)
    return found
