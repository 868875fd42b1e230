"""Whether there is room: on the host for what a slice has on its GPUs, and on the GPUs for what it had there.

The driver copies a process's GPU memory into memory of the process, so its cgroup is charged. Both the host and the
cgroup have to have it before anything is asked: the kernel would kill the process otherwise. A GPU has to have it
before a process comes back: driver 580 never brings one back that once found no room.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping

from nvc.base.files import lines_of
from nvc.base.value import Value
from nvc.daemon.audit.accountant import User
from nvc.daemon.audit.nvml_client import DeviceSeen
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


def host_refusal(
    saved: Iterable[Saved], leaving: Iterable[Saved] = (), proc: str = "/proc", cgroups: str = "/sys/fs/cgroup"
) -> Refusal | None:
    """Why the host has no room for the memory of these processes, with those that leave already; None: it has."""
    own, others = Counter[int](), Counter[int]()
    for pids, each in (own, saved), (others, leaving):
        for one in each:
            pids[one.pid] += one.bytes
    whole, free = own.total() + others.total(), _available(proc)
    if free is not None and free < whole + HOST_SPARE:
        left = f"{size_text(max(0, free))} left, of which {size_text(HOST_SPARE)} stay free"
        cause = f"{size_text(whole)} are to be kept in the host's memory, which has {left}"
        return Refusal(f"{proc}/meminfo", cause, "end or resume others, or have more memory")
    groups = Counter[str]()
    for pid, count in own.items():
        groups.update(dict.fromkeys(_groups(pid, proc, cgroups), count))
    for pid, count in others.items():
        groups.update({path: count for path in _groups(pid, proc, cgroups) if path in groups})
    for path, count in sorted(groups.items(), reverse=True):
        room = _left(path)
        if room is not None and room < count:
            has = f"which has {size_text(room)} left"
            cause = f"{size_text(count)} are to be kept in the memory of this cgroup, {has}"
            return Refusal(path, cause, "raise its limit of memory first")
    return None


def size_refusal(size: int, used: int, taken: Iterable[Saved]) -> Refusal | None:
    """Why `size` bytes, the operator's swap-size, of which `used` are taken, have no room; None: they have.

    Without a size they have as much as the host.
    """
    whole = sum(one.bytes for one in taken)
    if not size or used + whole <= size:
        return None
    left = f"{size_text(max(0, size - used))} of {size_text(size)}"
    cause = f"{size_text(whole)} are to be kept in the host's memory, and {left} are left"
    return Refusal("swap-size", cause, "resume or end others, or raise it in config.toml and restart nvcd")


def stopped_refusal(pids: Iterable[int], proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> Refusal | None:
    """Why a process cannot answer the driver: it is stopped, or its cgroup is frozen. None: all can."""
    for pid in pids:
        lines = lines_of(_text(f"{proc}/{pid}/status"))  # `stat` can be held, see nvc.kernel.processes
        if any(line.startswith(_STOPPED) for line in lines):
            cause = "the process is stopped, by a signal or a debugger"
            return Refusal(f"{proc}/{pid}", cause, f"`kill -CONT {pid}`, or leave the debugger")
        for path in _groups(pid, proc, cgroups, "freezer"):
            state = _text(f"{path}/cgroup.events") + _text(f"{path}/freezer.state")  # of version 2, and 1
            if "frozen 1" in state or state.startswith(("FREEZING", "FROZEN")):
                return Refusal(path, f"process {pid} is frozen, as its cgroup is", "unpause its container first")
    return None


def needed(saved: Iterable[Saved]) -> dict[str, int]:
    """Bytes of each GPU that have to be free for these to come back, by UUID."""
    found: dict[str, int] = {}
    for one in saved:
        found[one.uuid] = found.get(one.uuid, GPU_SPARE) + one.bytes
    return found


def unclaimed(devices: Iterable[DeviceSeen], users: Iterable[User], moving: Iterable[Saved]) -> Counter[str]:
    """Bytes of each GPU that are free, by UUID in lower case, without what those on their way have not there yet.

    Nor without what they do not have there any more: if one process of a slice cannot leave, the others come back.
    """
    found = Counter({one.uuid.lower(): one.memory - one.used for one in devices})
    shown = {(one.pid, one.uuid.lower()): max(0, one.used) for one in users}
    for one in moving:
        found[one.uuid.lower()] -= max(0, one.bytes - shown.get((one.pid, one.uuid.lower()), 0))
    return found


def gpu_refusal(needs: Mapping[str, int], free: Mapping[str, int]) -> Refusal | None:
    """Why a GPU has no room; None: all have. `free` by UUID in lower case; one that is not known has none."""
    for uuid, count in needs.items():
        left = max(0, free.get(uuid.lower(), 0))
        if left < count:
            return Refusal(
                uuid, f"{size_text(count)} have to be free, and {size_text(left)} are",
                "end or suspend others on this GPU, then try again",
            )  # fmt: skip
    return None


def resident(pid: int, proc: str = "/proc") -> int:
    """Bytes of the host's memory that a process has; 0: none, or it has ended."""
    return _bytes(f"{proc}/{pid}/status", "VmRSS:") or 0


def _available(proc: str) -> int | None:
    return _bytes(f"{proc}/meminfo", "MemAvailable:")


def _bytes(path: str, name: str) -> int | None:
    for line in lines_of(_text(path)):
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return None


def _groups(pid: int, proc: str, cgroups: str, kind: str = "memory") -> list[str]:
    """The directories of a process's cgroup of a kind and of those above it."""
    for line in lines_of(_text(f"{proc}/{pid}/cgroup")):
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if kind in controllers.split(","):
            base = f"{cgroups}/{kind}"
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
