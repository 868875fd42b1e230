"""Processes that outlive the program which started them, and are ended by another: known by id and start time."""

from __future__ import annotations

import contextlib
import glob
import os
import signal

from .. import until

CGROUPS = "/sys/fs/cgroup"


def started(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 if there is none, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as text:
            fields = text.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def end(processes: dict[int, int], number: int = signal.SIGKILL) -> None:
    """Signal those that are still the same, and wait until they have ended."""
    same = [pid for pid, when in processes.items() if when and started(pid) == when]
    for pid in same:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    until(lambda: not [pid for pid in same if started(pid) == processes[pid]], lambda: f"{same} do not end")


def hierarchies() -> list[str]:
    """The mounted cgroup hierarchies: one of version 2, or those of version 1."""
    if os.path.exists(f"{CGROUPS}/cgroup.controllers"):
        return [CGROUPS]
    # Controllers that are mounted together are links to one directory.
    found = {os.path.realpath(path) for path in glob.glob(f"{CGROUPS}/*")}
    return sorted(path for path in found if os.path.exists(f"{path}/cgroup.procs"))


def tracked() -> str:
    """The hierarchy in which a node's processes are looked up."""
    return next((path for path in hierarchies() if path.endswith("/pids")), hierarchies()[0])


def make_group(name: str) -> None:
    """Make a cgroup, with a child for daemons, in every hierarchy that counts something."""
    for hierarchy in hierarchies():
        os.makedirs(f"{hierarchy}/{name}", exist_ok=True)
        if os.path.basename(hierarchy) == "cpuset":  # empty in a new group, which refuses every process then
            for file in ("cpuset.cpus", "cpuset.mems"):
                _copy(f"{hierarchy}/{file}", f"{hierarchy}/{name}/{file}")
    if hierarchies() == [CGROUPS]:
        with open(f"{CGROUPS}/cgroup.controllers", encoding="ascii") as text:
            wanted = " ".join(f"+{controller}" for controller in text.read().split())
        with open(f"{CGROUPS}/cgroup.subtree_control", "w", encoding="ascii") as out:
            out.write(wanted)
    os.makedirs(f"{tracked()}/{name}/daemons", exist_ok=True)


def _copy(source: str, target: str) -> None:
    with open(source, encoding="ascii") as text, open(target, "w", encoding="ascii") as out:
        out.write(text.read())


def members(name: str) -> dict[int, int]:
    """The processes of a cgroup and those below it."""
    pids: set[int] = set()
    for path in glob.glob(f"{tracked()}/{name}/**/cgroup.procs", recursive=True):
        with contextlib.suppress(FileNotFoundError, OSError), open(path, encoding="ascii") as text:
            pids.update(map(int, text.read().split()))
    return {pid: started(pid) for pid in pids}


def remove_group(name: str) -> None:
    """Kill what is in a cgroup, and remove it. A runtime's shim may start one more process while it ends."""

    def empty() -> bool:
        running = members(name)
        end(running)
        return not running

    until(empty, lambda: f"processes of {name} do not end: {members(name)}")
    for hierarchy in hierarchies():
        for path, _, _ in os.walk(f"{hierarchy}/{name}", topdown=False):
            until(lambda path=path: _removed(path), lambda path=path: f"{path} is busy")  # type: ignore[misc]


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
