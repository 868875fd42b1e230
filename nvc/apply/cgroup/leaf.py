"""Cgroups of version 2 for which the driver can limit memory: leaves, since a process counts for the one it is in.

The driver is told a cgroup by its path, so what is there is compared by its inode before and after.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.apply.cgroup.find import below, memberships, mounted, read_file
from nvc.base.errors import ContainerError
from nvc.base.files import closing
from nvc.base.types import Callable
from nvc.base.value import Value

STEP = "isolate by the kernel"
VERSION_HINT = "the driver limits memory by cgroup v2: boot with it, or use no kernel isolation"
LEAF_HINT = "limit the container itself: start it without cgroups of its own inside"
OWN_HINT = "have the engine give the container a cgroup"
PREFIX = "nvc-run-"


class Leaf(Value):
    """A cgroup without others in it."""

    path: str  # of its directory, where it is mounted here
    inode: int  # the kernel's number of it: a later one of the same path has another


def leaf_of(proc: int) -> Leaf:
    """The cgroup of the process whose directory of /proc is open as `proc`.

    Raises ContainerError where it has none of its own, where it is no leaf, and where it or one above it is not
    root's: who owns that can move a process from there to a cgroup that has no limit.
    """
    path, top = _place_of(proc)
    if path == top:
        raise ContainerError(
            STEP, path, "the root of the cgroups: the process has none of its own", OWN_HINT
        )
    try:
        inode, children, foreign = os.stat(path).st_ino, _children(path), _delegated(path, top)
    except OSError as error:
        raise ContainerError.of(STEP, path, error, "start it again if it has ended") from None
    if children:
        raise ContainerError(STEP, path, f"not a leaf: the cgroup {children[0]} is in it", LEAF_HINT)
    if foreign:
        cause = f"{foreign[0]} is delegated to user {foreign[1]}, and that user can leave it"
        raise ContainerError(STEP, path, cause, "start the container as root, without delegating cgroups")
    return Leaf(path, inode)


def _delegated(path: str, top: str) -> tuple[str, int] | None:
    """The nearest cgroup from `path` up to `top` that does not belong to root, and its owner. Raises OSError."""
    while True:
        owners = {os.stat(path).st_uid, os.stat(f"{path}/cgroup.procs").st_uid} - {0}
        if owners:
            return path, min(owners)
        if path == top:
            return None
        path = path.rpartition("/")[0]


def check_unchanged(leaf: Leaf, divided: bool = False) -> None:
    """Raise ContainerError unless the cgroup is still there, and a leaf or `divided`."""
    try:
        found = os.stat(leaf.path).st_ino
        children = _children(leaf.path)
    except OSError as error:
        raise ContainerError.of(STEP, leaf.path, error, "start it again if it has ended") from None
    if found != leaf.inode:
        raise ContainerError(STEP, leaf.path, "another cgroup is there now", "start it again if it has ended")
    if children and not divided:
        raise ContainerError(STEP, leaf.path, f"not a leaf any more: {children[0]} is in it", LEAF_HINT)


def directory_of(proc: int) -> str:
    """Where the cgroup of a process is mounted here. Raises ContainerError."""
    return _place_of(proc)[0]


def _place_of(proc: int) -> tuple[str, str]:
    """Where the cgroup of a process is mounted here, and where the root of its hierarchy is mounted."""
    try:
        path = memberships(read_file("cgroup", proc))[1]
        mounts = [mount for mount in mounted() if mount.version == 2]
    except OSError as error:
        raise ContainerError.of(STEP, "/proc/PID/cgroup", error) from None
    if not path:
        raise ContainerError(STEP, cause="the process has no cgroup of version 2", hint=VERSION_HINT)
    for mount in mounts:
        relative = below(mount.root, path)
        if relative is None:
            continue
        found = mount.point.rstrip("/") + (f"/{relative}" if relative else "")
        try:
            if os.stat(found).st_dev == mount.device:
                return found, mount.point
        except OSError:
            continue  # covered by another mount, or gone: another mount may show it
    raise ContainerError(
        STEP, path, "no mounted cgroup v2 hierarchy shows this cgroup",
        "call the hook as prestart or createRuntime, on a host that has mounted cgroup2",
    )  # fmt: skip


def make_leaf(proc: int, release: Callable[[Leaf], bool]) -> Leaf:
    """A new cgroup inside that of a process, for another process to enter.

    Those of earlier runs that nobody is in are removed if `release`, called for each, says so: the driver may still
    reserve memory for one, and that could not be ended without the cgroup. Raises ContainerError.
    """
    own = directory_of(proc)
    path = f"{own}/{PREFIX}{os.getpid()}"
    try:
        for name in _children(own):
            # One with this process's number is of an earlier process that had it.
            if name.startswith(PREFIX) and (path.endswith(f"/{name}") or not _runs(name[len(PREFIX) :])):
                _remove_empty(f"{own}/{name}", release)
        os.mkdir(path, 0o755)
        return Leaf(path, os.stat(path).st_ino)
    except OSError as error:
        raise ContainerError.of(STEP, path, error, "mount cgroup2 writable") from None


def _remove_empty(path: str, release: Callable[[Leaf], bool]) -> None:
    """Raises OSError."""
    try:
        empty = b"populated 0" in read_file(f"{path}/cgroup.events")
        inode = os.stat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return  # another run that starts now has removed it
    if empty and release(Leaf(path, inode)):
        remove(path)


def _runs(pid: str) -> bool:
    """Whether there is such a process: it may not have filled its cgroup yet."""
    return os.access(f"/proc/{pid}", os.F_OK)


def enter(leaf: Leaf) -> None:
    """Move this process there. Raises ContainerError."""
    try:
        with closing(os.open(f"{leaf.path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)) as fd:
            os.write(fd, b"0")
    except OSError as error:
        raise ContainerError.of(STEP, leaf.path, error) from None


def remove(path: str) -> None:
    """Remove a cgroup that no process is in. One that is in use stays, with its limits."""
    try:
        os.rmdir(path)
    except OSError:
        pass


def _children(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
