"""Whether there is room: on the host for what a slice has on its GPUs, and on the GPUs for what it had there.

The driver copies a process's GPU memory into memory of the process, so its cgroup is charged. Both the host and the
cgroup have to have it before anything is asked: the kernel would kill the process otherwise. A GPU has to have it
before a process comes back: driver 580 never brings one back that once found no room.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from nvc.base.files import lines_of
from nvc.base.value import Value
from nvc.model.slices.sizes import size_text
from nvc.model.slices.suspension import HOST_SPARE, Saved
from nvc.slices.store.process_info import ENDED

#: Free memory of a GPU beyond what NVML had shown of the processes.
GPU_SPARE = 64 << 20
_MOST = 1 << 20
_UNLIMITED = 1 << 60  # cgroup v1 has a number near 2**63
_STOPPED = ("State:\tT", "State:\tt")


class Refusal(Value):
    """Why something is not done: where, why, and what to do."""

    path: str
    cause: str
    hint: str


def host_refusal(saved: Iterable[Saved], proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> Refusal | None:
    """Why the host has no room for the memory of these processes; None: it has."""
    needed: dict[int, int] = {}
    for one in saved:
        needed[one.pid] = needed.get(one.pid, 0) + one.bytes
    whole, free = sum(needed.values()), _available(proc)
    if free is not None and free < whole + HOST_SPARE:
        left = f"{size_text(max(0, free))} left, of which {size_text(HOST_SPARE)} stay free"
        cause = f"{size_text(whole)} are to be kept in the host's memory, which has {left}"
        return Refusal(f"{proc}/meminfo", cause, "end or resume others, or have more memory")
    groups: dict[str, int] = {}
    for pid, count in needed.items():
        for path in _groups(pid, proc, cgroups):
            groups[path] = groups.get(path, 0) + count
    for path, count in sorted(groups.items(), reverse=True):
        room = _left(path)
        if room is not None and room < count:
            has = f"which has {size_text(room)} left"
            cause = f"{size_text(count)} are to be kept in the memory of this cgroup, {has}"
            return Refusal(path, cause, "raise its limit of memory first")
    return None


def stopped_refusal(pids: Iterable[int], proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> Refusal | None:
    """Why a process cannot answer the driver: it is stopped, or its cgroup is frozen. None: all can."""
    for pid in pids:
        lines = lines_of(_text(f"{proc}/{pid}/status"))  # `stat` can be held, see nvc.kernel.processes
        if any(line.startswith(_STOPPED) for line in lines):
            cause = "the process is stopped, by a signal or a debugger"
            return Refusal(f"{proc}/{pid}", cause, f"`kill -CONT {pid}`, or leave the debugger")
        for path in _groups(pid, proc, cgroups):
            if "frozen 1" in _text(f"{path}/cgroup.events"):
                return Refusal(path, f"process {pid} is frozen, as its cgroup is", "unpause its container first")
    return None


def gpu_refusal(
    saved: Iterable[Saved], shown: frozenset[int], free: Mapping[str, int], coming: Iterable[Saved] = ()
) -> Refusal | None:
    """Why a GPU has no room for the processes that are not `shown` there any more; None: all have.

    `free`: bytes by UUID in lower case; one that is not known has none. `coming`: what others are about to take.
    """
    needed: dict[str, int] = {}
    for one in saved:
        if one.pid not in shown:
            needed[one.uuid] = needed.get(one.uuid, 0) + one.bytes
    for uuid, count in needed.items():
        taken = sum(one.bytes for one in coming if one.uuid == uuid)
        left = max(0, free.get(uuid.lower(), 0) - taken)
        if left < count + GPU_SPARE:
            return Refusal(
                uuid, f"{size_text(count + GPU_SPARE)} have to be free, and {size_text(left)} are",
                "end or suspend others on this GPU, then try again",
            )  # fmt: skip
    return None


def _available(proc: str) -> int | None:
    for line in lines_of(_text(f"{proc}/meminfo")):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _groups(pid: int, proc: str, cgroups: str) -> list[str]:
    """The directories of a process's memory cgroup and of those above it."""
    for line in lines_of(_text(f"{proc}/{pid}/cgroup")):
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if "memory" in controllers.split(","):
            base = f"{cgroups}/memory"
        elif number == "0" and not controllers:
            base = cgroups if os.path.exists(f"{cgroups}/cgroup.controllers") else f"{cgroups}/unified"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            continue
        return ["/".join((base, *parts[:count])) for count in range(1, len(parts) + 1)]
    return []


def _left(path: str) -> int | None:
    """Bytes that a cgroup may still take, if it has a limit. Pages of files are given up for others."""
    for most, now, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _text(f"{path}/{most}").strip(), _text(f"{path}/{now}").strip()
        if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED:
            lines = lines_of(_text(f"{path}/memory.stat"))
            stat = dict(line.split(" ", 1) for line in lines if " " in line)
            return max(0, int(limit) - int(used) + int(stat.get(cache, "0")))
    return None


def _text(path: str) -> str:
    """What a file of the kernel says, "" where there is none. Raises OSError."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError as error:
        if error.errno in ENDED or isinstance(error, NotADirectoryError):
            return ""
        raise
