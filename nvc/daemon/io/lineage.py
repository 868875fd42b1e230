"""The slice of a process that shows no file of it: found by what a process cannot leave.

With a mount namespace of its own, a process can have a root directory without the slice's files. It may make that
namespace in a user namespace, without any right. But it stays

- in the pid namespace of its container, or in one below that;
- in the cgroup of its container, or in one below that, if the container shares the host's pid namespace;
- a descendant of its program, if that is in no container. One whose parents have ended is none any more.

Each is compared with the slice's first process, as long as that lives.
"""

from __future__ import annotations

import fcntl
import os

from nvc.apply.cgroup.find import below, named_after
from nvc.base.files import lines_of
from nvc.kernel import Kernel
from nvc.kernel.processes import namespace_number, open_namespace
from nvc.model.slices.entry import Entry
from nvc.slices.store.process_info import is_here, mount_namespace, status_number
from nvc.slices.store.process_view import ProcessView

#: ioctl_nsfs(2): the pid namespace above one; the number that its process has here, since Linux 6.11.
NS_GET_PARENT, NS_GET_PID_FROM_PIDNS = 0xB702, 0x8004B706
ANCESTORS = 256


def slice_by_lineage(kernel: Kernel, pid: int, entries: list[Entry]) -> Entry | None:
    """The one slice that a process can be of; None: that is not certain. Raises OSError for one that has ended."""
    pid = mount_namespace(pid)[1]
    spaces, init = _pid_namespaces(pid)
    first = [(_space_of(entry.pid), entry) for entry in entries if is_here(entry.pid, entry.start)]
    for space in spaces:
        found = [entry for its, entry in first if its == space]
        if found:  # containers of a pod may share one
            return _only(found if len(found) == 1 else _grouped(pid, found))
    if spaces:
        return _shown_to(kernel, init, entries) if init else None
    own = os.stat("/proc/self/ns/pid").st_ino
    here = [entry for its, entry in first if its == own]
    programs = {entry.pid: entry for entry in here if not entry.rootfs}
    return _ancestor(pid, programs) or _only(_grouped(pid, [entry for entry in here if entry.rootfs]))


def _only(found: list[Entry]) -> Entry | None:
    return found[0] if len(found) == 1 else None


def _pid_namespaces(pid: int) -> tuple[list[int], int]:
    """The pid namespaces of a process below our own, innermost first, and the first process of the outermost.

    That is 0 if the kernel does not say. Raises OSError.
    """
    own, found, init = os.stat("/proc/self/ns/pid").st_ino, list[int](), 0
    fd = open_namespace(pid, "pid")
    try:
        while (number := os.fstat(fd).st_ino) != own:
            found.append(number)
            init = _first_in(fd)
            try:
                above = fcntl.ioctl(fd, NS_GET_PARENT)
            except PermissionError:  # beside ours, not below
                return [], 0
            os.close(fd)
            fd = above
    finally:
        os.close(fd)
    return found, init


def _first_in(space: int) -> int:
    try:
        return fcntl.ioctl(space, NS_GET_PID_FROM_PIDNS, 1)
    except OSError:
        return 0


def _space_of(pid: int) -> int:
    try:
        return namespace_number(mount_namespace(pid)[1], "pid")
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0


def _shown_to(kernel: Kernel, pid: int, entries: list[Entry]) -> Entry | None:
    with ProcessView(kernel, pid) as view:
        return next((entry for entry in entries if view.sees(entry)), None)


def _ancestor(pid: int, programs: dict[int, Entry]) -> Entry | None:
    for _ in range(ANCESTORS if programs else 0):
        if pid in programs or pid <= 1:
            return programs.get(pid)
        pid = status_number(pid, b"PPid:")
    return None


def _grouped(pid: int, entries: list[Entry]) -> list[Entry]:
    """The slices in whose cgroups a process is. Those of nvcd's own cgroup say nothing. Raises OSError."""
    if not entries:
        return []
    own, its = _cgroups("self"), _cgroups(str(pid))
    return [
        entry for entry in entries
        if (theirs := _containers(entry)) and _are_below(theirs, its) and not _are_below(theirs, own)
    ]  # fmt: skip


def _containers(entry: Entry) -> dict[str, str]:
    """The cgroups of a slice's container: its first process may have made some below, and moved there."""
    found = _cgroups(str(entry.pid))
    for name, path in found.items():
        if container := named_after(entry.container, path):
            found[name] = container
        elif entry.cgroup and below(entry.cgroup, path) is not None:
            found[name] = entry.cgroup
    return found


def _are_below(above: dict[str, str], paths: dict[str, str]) -> bool:
    return all(name in paths and below(path, paths[name]) is not None for name, path in above.items())


def _cgroups(pid: str) -> dict[str, str]:
    """The cgroups of a process, one for each hierarchy. Raises OSError."""
    with open(f"/proc/{pid}/cgroup", "rb") as file:
        text = file.read().decode("utf-8", "surrogateescape")
    lines = [line.split(":", 2) for line in lines_of(text)]
    return {words[0]: words[2] for words in lines if len(words) == 3}
