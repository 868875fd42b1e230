"""What the kernel says of processes that make that long: nvcd reads it in bounded time, and whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support import CLEAN_ENV, until
from support.device_cgroup import Group

from nvc.daemon.io.identity import parent_of
from nvc.daemon.io.lineage import slice_by_lineage
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of
from nvc.model.slices.entry import Entry
from nvc.slices.store.process_info import is_ending, mount_namespace, pid_inside

GROUPS = "import os; os.setgroups(range(1 << 31, (1 << 31) + (1 << 16)))"
THREADS = """import ctypes, os, threading
threading.stack_size(32768)
wait = threading.Lock()
wait.acquire()
for _ in range(5000):
    threading.Thread(target=wait.acquire).start()
print(end="ready\\n", flush=True)
ctypes.PyDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
"""


@contextmanager
def running(program: str, *before: str) -> Iterator[int]:
    """The number of a Python process that has done this; its first thread may have ended."""
    text = f"{program}\nprint('ready', flush=True)\nimport sys; sys.stdin.read()"
    with subprocess.Popen(
        [*before, sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=CLEAN_ENV
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


def test_a_process_with_many_groups() -> None:
    """Its number in its own pid namespace comes behind a line of 700 KiB. With another one it would be a bypass."""
    with running(GROUPS, "unshare", "--pid", "--fork", "--kill-child") as outer:
        with open(f"/proc/{outer}/task/{outer}/children", encoding="ascii") as children:
            inner = int(children.read())
        assert pid_inside(inner) == 1 and parent_of(inner) == outer


def test_a_container_that_shares_the_hosts_pid_namespace() -> None:
    """Its cgroup says who is in it; what is in another one, or in nvcd's own, is in no slice."""
    with running("pass") as first, running("pass") as hidden, running("pass") as stranger:
        start = start_of(f"/proc/{first}")
        entry = Entry("1-2-3-4", "/none", first, start, "/rootfs", "/lib", 0, ())
        kernel = LinuxKernel()
        assert slice_by_lineage(kernel, hidden, [entry]) is None
        with Group.make(2) as group, Group.make(2, f"{os.path.basename(group.path)}/inside") as inside:
            group.enter(first)
            inside.enter(hidden)
            try:
                assert slice_by_lineage(kernel, hidden, [entry]) == entry
                assert slice_by_lineage(kernel, stranger, [entry]) is None
            finally:
                for pid in (first, hidden):
                    with open(f"{group.mount}/cgroup.procs", "w", encoding="ascii") as procs:
                        procs.write(str(pid))


@pytest.mark.parametrize("known", ["container", "cgroup"])
def test_cgroups_that_a_container_makes(known: str) -> None:
    """Its first process is in one, and who hides is in another one: both are below the container's."""
    name = f"{os.getpid():064x}"
    more = {"container": name} if known == "container" else {"cgroup": f"/{name}"}
    with running("pass") as first, running("pass") as hidden, Group.make(2, name) as group:
        entry = Entry("1-2-3-4", "/none", first, start_of(f"/proc/{first}"), "/rootfs", "/lib", 0, (), **more)
        with Group.make(2, f"{name}/a") as one, Group.make(2, f"{name}/b") as other:
            one.enter(first)
            other.enter(hidden)
            try:
                assert slice_by_lineage(LinuxKernel(), hidden, [entry]) == entry
            finally:
                for pid in (first, hidden):
                    with open(f"{group.mount}/cgroup.procs", "w", encoding="ascii") as procs:
                        procs.write(str(pid))


def cost(work: Callable[[], object]) -> int:
    """Nanoseconds of a processor, at best."""
    found = []
    for _ in range(5):
        began = time.thread_time_ns()
        work()
        found.append(time.thread_time_ns() - began)
    return min(found)


@pytest.mark.nightly  # it measures, and takes many seconds of a processor
def test_a_process_with_many_threads() -> None:
    """Its first one has ended, so that another one is looked for: that does not take a list of all.

    It takes an eighth to a half of that: the kernel goes through a part of the threads. A look that took the list
    would take longer than the list alone.
    """
    with running(THREADS) as pid:
        until(lambda: not _lives(pid))
        for look in (is_ending, mount_namespace):
            found = cost(lambda look=look: look(pid))  # type: ignore[misc]
            assert found * 5 < cost(lambda: os.listdir(f"/proc/{pid}/task")) * 4, look


def _lives(pid: int) -> bool:
    with open(f"/proc/{pid}/task/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"
