"""Finds a container's first process by its name or id, in the state directories of runtimes and engines."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nvc.base.errors import ContainerError, InputError
from nvc.base.files import lines_of
from nvc.discovery.containers.cgroup import ids_in
from nvc.discovery.containers.files import read_bytes, read_json, table
from nvc.discovery.containers.lookup import Lookup
from nvc.kernel.processes import namespace_number

#: State directories of runc and crun, under each engine that calls them.
STATES = (
    "/run/runc/*", "/run/crun/*", "/run/docker/runtime-*/*/*", "/run/containerd/runc/*/*",
    "/run/user/*/runc/*", "/run/user/*/crun/*", "/run/containers/*/*",
)  # fmt: skip
_SHORTEST = 4  # characters of an abbreviated id
_PID_MAX = 1 << 22  # PID_MAX_LIMIT of the kernel


@dataclass(frozen=True)
class RunningContainer:
    """One running container."""

    name: str  # as it was asked for
    pid: int  # of its first process, as /proc numbers it
    id: str = ""  # of its runtime; "" where only a process was named
    bundle: str = ""  # "" where it is not known


def resolve(name: str) -> RunningContainer:
    """The container of a process id, an engine's name for it, a container id, or the beginning of one.

    A name or a whole id comes before what only begins like it: cgroups of Kubernetes are called pod0e08c7e7-...

    Raises InputError if no running container has that name, ContainerError if /proc cannot be read, or what may
    have a container of that name.
    """
    if not name or not name.isprintable() or len(name) > 256 or "/" in name:
        raise InputError("find container", name, "want a process id, or the name or id of a container")
    if name.isascii() and name.isdigit() and len(name) < 10 and os.path.exists(f"/proc/{name}"):
        return _with_state(RunningContainer(name, int(name)))
    try:
        ids, unread = Lookup().ids_of(name)
    except OSError as error:
        raise ContainerError.of("find container", error.filename, error, "give its process id") from None
    tries = [(id, True) for id in (*ids, name)]
    if len(name) >= _SHORTEST:
        tries.append((name, False))
    for wanted, whole in tries:
        found = _by_state(name, wanted, whole) or _by_cgroup(name, wanted, whole)
        if found:
            return found
    if unread is not None:
        raise ContainerError.of("find container", unread.filename, unread, "give its process id")
    process = "no process has this number, and " if name.isdigit() else ""
    raise InputError(
        "find container", name, f"{process}no running container has this name",
        "give the process id of its first process: docker inspect -f {{.State.Pid}}, crictl inspect, runc state",
    )  # fmt: skip


def known() -> list[tuple[str, str]]:
    """The ids of the runtimes' containers, each with its state directory; for completion."""
    return [(os.path.basename(directory), directory) for directory in _states()]


def _states() -> Iterator[str]:
    for pattern in STATES:
        yield from glob.glob(pattern)


def read_state(directory: str) -> tuple[int, str]:
    """Process id and bundle in a runtime's state directory, runc's or crun's; (0, "") for none.

    That of a rootless runtime is its user's, who writes there whatever he likes.
    """
    state = table(read_json(f"{directory}/state.json"))
    pid, labels = state.get("init_process_pid"), table(state.get("config")).get("labels")
    texts = [text for text in labels if type(text) is str] if type(labels) is list else []
    bundle: object = next((text[7:] for text in texts if text.startswith("bundle=/")), "")
    if not state:
        state = table(read_json(f"{directory}/status"))
        pid, bundle = state.get("pid"), state.get("bundle")
    pid = pid if type(pid) is int and 0 < pid <= _PID_MAX else 0
    return pid, bundle if type(bundle) is str and bundle.isprintable() else ""


def _is_meant(id: str, wanted: str, whole: bool) -> bool:
    return id == wanted if whole else id.startswith(wanted)


def _by_state(name: str, wanted: str, whole: bool) -> RunningContainer | None:
    """The container whose runtime keeps a state under the id, or under one that begins so."""
    for directory in _states():
        if _is_meant(os.path.basename(directory), wanted, whole):
            pid, bundle = read_state(directory)
            if pid and os.path.exists(f"/proc/{pid}"):
                return RunningContainer(name, pid, os.path.basename(directory), bundle)
    return None


def _by_cgroup(name: str, wanted: str, whole: bool) -> RunningContainer | None:
    """The first process in a cgroup that bears the id, or one that begins so."""
    try:
        pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError as error:
        raise ContainerError.of("find container", "/proc", error) from None
    for pid in pids:
        parts = [part for path in _cgroups(pid) for part in path.split("/")]
        for candidate in [id for part in parts for id in ids_in(part)]:
            if _is_meant(candidate, wanted, whole):
                return _with_state(RunningContainer(name, pid, candidate))
    return None


def _cgroups(pid: int) -> list[str]:
    """The paths of a process's cgroups; none where it has ended."""
    lines = lines_of(read_bytes(f"/proc/{pid}/cgroup").decode("utf-8", "replace"))
    return [line.split(":", 2)[-1] for line in lines]


def _with_state(found: RunningContainer) -> RunningContainer:
    """Add id and bundle to a container, where a runtime's state names its process or one in the same namespace."""
    namespace = mount_namespace(found.pid)
    for directory in _states():
        pid, bundle = read_state(directory)
        if pid and (pid == found.pid or namespace and mount_namespace(pid) == namespace):
            return replace(found, id=os.path.basename(directory), bundle=bundle)
    return found


def mount_namespace(pid: int) -> int:
    """The number of a process's mount namespace; 0 where that is not seen."""
    try:
        return namespace_number(pid, "mnt")
    except OSError:
        return 0
