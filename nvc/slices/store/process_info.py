"""Facts about processes from /proc of the host: start time, mount namespace, cgroup, a container's first one."""

from __future__ import annotations

import errno
import fcntl
import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.apply.target import Target
from nvc.base.files import closing, lines_of
from nvc.kernel.processes import has_ended, namespace_number, open_namespace, start_of

#: ioctl_nsfs(2), since Linux 6.11: a number of the mount namespace that is never given again.
NS_GET_MNTNS_ID = 0x8008B705
#: What /proc answers for a process that has ended.
ENDED = (errno.ENOENT, errno.ESRCH)
_ANCESTORS_MAX = 64
_STATUS_PART = 1 << 16  # bytes of /proc/PID/status that are read at a time


def first_process(target: Target) -> tuple[int, int]:
    """The number and start time of the process that lives as long as the container.

    A hook in the container's namespaces ends soon. The container's first process started it: its farthest ancestor
    in the same mount namespace. Raises OSError.
    """
    if target.proc < 0:
        return os.getpid(), start_of("/proc/self")
    pid = int(os.readlink(f"/proc/self/fd/{target.proc}").rpartition("/")[2])
    # Without a namespace of its own the target is this process or the one that has started it.
    if target.mount_namespace < 0 and not target.host:
        pid = _farthest(pid)
    return pid, start_of(f"/proc/{pid}")


def _farthest(pid: int) -> int:
    here = namespace_number(pid, "mnt")
    for _ in range(_ANCESTORS_MAX):
        parent = status_number(pid, b"PPid:")
        if parent <= 1:
            break
        try:
            there = namespace_number(parent, "mnt")
        except PermissionError:
            return parent  # runtimes keep their own process closed until it becomes the container's first
        if there != here or not _wholly_in(parent, here):
            break
        pid = parent
    return pid


def _wholly_in(pid: int, namespace: int) -> bool:
    """Whether all threads of a process are in a mount namespace.

    runc since 1.2 opens sources of mounts by a thread that joins the container's. It may be the main thread, whose
    namespace /proc shows as the process's.
    """
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            if namespace_number(int(thread), "mnt") != namespace:
                return False
        except OSError as error:
            if error.errno not in ENDED:
                raise
    return True


def namespace_id(fd: int) -> int:
    """The number of an open mount namespace, never given again; 0 if the kernel does not say (before 6.11)."""
    buffer = bytearray(8)
    try:
        fcntl.ioctl(fd, NS_GET_MNTNS_ID, buffer)
    except OSError:
        return 0
    return int.from_bytes(buffer, "little")  # both machines that nvc knows are


def namespace_id_of(pid: int) -> int:
    """The number of a process's mount namespace, never given again; 0: the kernel does not say. Raises OSError."""
    with closing(open_namespace(pid, "mnt")) as fd:
        return namespace_id(fd)


def namespace_of(target: Target) -> int:
    """The number of a container's mount namespace, never given again; 0: the host's, or unknown."""
    if target.mount_namespace >= 0:
        return namespace_id(target.mount_namespace)
    return 0 if target.host else namespace_id_of(int(os.readlink("/proc/self")))  # the host's outlives every slice


def cgroup_of(proc: int) -> str:
    """A cgroup of the process whose /proc directory is open as `proc`; "" if it is in root cgroups alone."""
    try:
        with closing(os.open("cgroup", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)) as fd:
            text = os.read(fd, 1 << 16).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    paths = (line.split(":", 2)[-1] for line in lines_of(text))  # 3:cpu:/docker/ID or 0::/docker/ID
    return next((path for path in paths if path.strip("/")), "")


def is_here(pid: int, start: int) -> bool:
    """Whether the process with this number and start time lives; True if that cannot be told."""
    if pid <= 0:
        return False
    try:
        return start_of(f"/proc/{pid}") == start and not has_ended(f"/proc/{pid}")
    except OSError as error:
        return error.errno not in ENDED


def mount_namespace(pid: int) -> tuple[int, int]:
    """The number of a process's mount namespace, and a thread in it: the first may have ended. Raises OSError."""
    try:
        return namespace_number(pid, "mnt"), pid
    except OSError as error:
        if error.errno not in ENDED:
            raise
        with os.scandir(f"/proc/{pid}/task") as threads:  # there may be 100,000, and the first will do
            for one in threads:
                try:
                    return namespace_number(int(one.name), "mnt"), int(one.name)
                except OSError as second:
                    if second.errno not in ENDED:
                        raise
        raise error from None


def is_ending(pid: int) -> bool:
    """Whether all threads of a process have begun to exit: they have given up its memory. Raises OSError."""
    if not _ends(f"/proc/{pid}"):
        return False
    with os.scandir(f"/proc/{pid}/task") as threads:  # the first thread may have ended alone
        for one in threads:
            try:
                if not _ends(f"/proc/{pid}/task/{one.name}"):
                    return False
            except (FileNotFoundError, ProcessLookupError):
                pass  # this one has ended
    return True


def _ends(directory: str) -> bool:
    return b"\nVmSize:" not in _status(directory)


def _status(directory: str) -> bytes:
    """What `status` says, which no process can hold. Raises OSError.

    A process can have 65,536 groups, whose line is some hundred KiB long.
    """
    with closing(os.open(f"{directory}/status", os.O_RDONLY | os.O_CLOEXEC)) as fd:
        return b"".join(iter(lambda: os.read(fd, _STATUS_PART), b""))


def status_number(pid: int, name: bytes) -> int:
    """The last number of a line of /proc/PID/status; 0: there is no such line. Raises OSError.

    The first line, which has the name that the process gives itself, is not looked for. Its line ends are escaped.
    """
    _, found, rest = _status(f"/proc/{pid}").partition(b"\n" + name)
    return int(rest.partition(b"\n")[0].split()[-1]) if found else 0


def pid_inside(pid: int) -> int:
    """The number of a process in its own pid namespace (proc(5), NSpid). Raises OSError."""
    return status_number(pid, b"NSpid:") or pid
