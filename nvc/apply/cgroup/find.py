"""Which cgroup decides about a process's devices, and its directory.

/proc/PID/cgroup names the cgroup, mountinfo says where its hierarchy is mounted here. The kernel writes both
relative to the cgroup namespace of the reader, so they go together (cgroup_namespaces(7)).
"""

from __future__ import annotations

import errno
import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.apply.cgroup import HINT_SKIP, STEP
from nvc.base.errors import MountError
from nvc.base.files import Closable, closing, read_up_to
from nvc.base.types import Iterator
from nvc.base.value import Value
from nvc.kernel import Kernel

_MOST_BYTES = 16 << 20
ID_LENGTH = 32  # of a container, at least: shorter ones may be part of any name
_NAMESPACE = "/proc/self/ns/cgroup"
_INITIAL_NAMESPACE = 0xEFFFFFFB  # its inode since Linux 4.6 (PROC_CGROUP_INIT_INO)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class DeviceCgroup(Value, Closable):
    """The cgroup of a process. `directory` is an open descriptor, which the owner closes."""

    version: int  # 1: the devices controller, 2: device programs
    directory: int
    path: str  # where it is mounted here: for messages, never to be opened again
    mount: str  # the mount point above it

    def duplicate(self) -> DeviceCgroup:
        """A copy with a descriptor of its own, which the caller closes."""
        return DeviceCgroup(self.version, os.dup(self.directory), self.path, self.mount)

    def ancestors(self) -> Iterator[tuple[str, int]]:
        """The path and the open directory, until the next is asked for, of each cgroup above it. Raises OSError."""
        path, directory = self.path, os.dup(self.directory)
        try:
            while len(path) > len(self.mount):
                path = path.rpartition("/")[0]
                above = os.open("..", _DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = above
                yield path, directory
        finally:
            os.close(directory)

    def close(self) -> None:
        """Close the directory."""
        os.close(self.directory)


class CgroupMount(Value):
    """One cgroup mount of mountinfo."""

    version: int
    root: str  # which cgroup is mounted
    point: str
    device: int  # st_dev of what is mounted
    read_only: bool


def device_cgroup(
    kernel: Kernel, proc_pid: int, mountinfo: str = "/proc/self/mountinfo"
) -> DeviceCgroup | None:
    """The cgroup that restricts the devices of the process whose /proc directory is open as `proc_pid`.

    None where nothing restricts them: no cgroups, or nothing but the root of a hierarchy that is not mounted
    here. Raises MountError when the cgroup cannot be reached, and InputError never: all text is the
    kernel's.
    """
    try:
        v1, v2 = memberships(read_file("cgroup", proc_pid))
    except OSError as error:
        raise MountError.of(STEP, "/proc/PID/cgroup", error) from None
    # On a host with both, the devices controller of v1 decides; but a process in its root group is not
    # restricted by it, and its engine may have preferred v2.
    version, path = (1, v1) if v1 and (v1 != "/" or v2 in ("", "/")) else (2, v2)
    if not path:
        return None
    namespaced = os.stat(_NAMESPACE).st_ino != _INITIAL_NAMESPACE
    if namespaced and version == 1 and v1 == v2 == "/" and (_is_top(kernel) or _has_programs(kernel)):
        version = 2
    try:
        mounts = cgroup_mounts(read_file(mountinfo))
    except OSError as error:
        raise MountError.of(STEP, mountinfo, error) from None
    found = _open(kernel, version, path, mounts)
    if found is None and namespaced:
        found = _in_namespace(kernel, version, path)
    if found is None and path != "/":
        cause = f"no mounted cgroup v{version} hierarchy shows this cgroup"
        raise MountError(STEP, path, cause, "make the host's cgroup mounts visible here, " + HINT_SKIP)
    return found


def memberships(text: bytes) -> tuple[str, str]:
    """(v1 path, v2 path) of a /proc/PID/cgroup, "" where the process has none.

    The v1 path is that of the devices controller, never of a named hierarchy that is merely called so.
    """
    v1 = v2 = ""
    for line in text.split(b"\n"):
        hierarchy, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")  # cgroup names may have colons, never newlines
        if not path.startswith(b"/"):
            continue
        if hierarchy == b"0" and not controllers:
            v2 = path.decode("utf-8", "surrogateescape")
        elif b"devices" in controllers.split(b","):
            v1 = path.decode("utf-8", "surrogateescape")
    return v1, v2


def cgroup_mounts(text: bytes) -> list[CgroupMount]:
    """The mounts of a mountinfo (proc_pid_mountinfo(5)) that show device cgroups, writable ones first."""
    mounts = []
    for line in text.split(b"\n"):
        if b" - cgroup" not in line:
            continue
        left, _, right = line.partition(b" - ")
        fields, kind = left.split(b" "), right.split(b" ")
        if len(fields) < 6 or len(kind) < 3:
            continue
        if kind[0] == b"cgroup2":
            version = 2
        elif kind[0] == b"cgroup" and b"devices" in kind[2].split(b","):
            version = 1
        else:
            continue
        major, _, minor = fields[2].partition(b":")
        if not (major.isdigit() and minor.isdigit() and len(major) < 8 and len(minor) < 8):
            continue
        read_only = b"ro" in fields[5].split(b",")
        device = os.makedev(int(major), int(minor))
        mounts.append(CgroupMount(version, unescape(fields[3]), unescape(fields[4]), device, read_only))
    mounts.sort(key=lambda mount: mount.read_only)
    return mounts


def mounted() -> list[CgroupMount]:
    """The mounts of this mount namespace that show device cgroups, writable ones first. Raises OSError."""
    return cgroup_mounts(read_file("/proc/self/mountinfo"))


def unescape(field: bytes) -> str:
    """A path of mountinfo, where white space and the backslash are a backslash and three octal digits."""
    first, *rest = field.split(b"\\")
    out = [first]
    for part in rest:
        digits = part[:3]
        if len(digits) == 3 and all(c in b"01234567" for c in digits) and digits[0] < 0x34:
            out += (bytes((int(digits, 8),)), part[3:])
        else:
            out += (b"\\", part)
    return b"".join(out).decode("utf-8", "surrogateescape")


def named_after(container: str, path: str) -> str:
    """The part of a cgroup's path that ends with the name in which engines put the id of a container, "" for none.

    The first one from the root counts: the container can only make cgroups below its own.
    """
    parts = path.split("/")
    for place, part in enumerate(parts, 1):
        if len(container) >= ID_LENGTH and container in part:
            return "/".join(parts[:place])
    return ""


def below(root: str, path: str) -> str | None:
    """`path` relative to the mounted cgroup `root`, "" for itself, None when it is not below it.

    Both may begin with `/..`, for cgroups outside of our cgroup namespace. A path that leaves the mount by
    `..` is not below it: the names in between are unknown.
    """
    prefix = [part for part in root.split("/") if part]
    parts = [part for part in path.split("/") if part]
    rest = parts[len(prefix) :]
    if parts[: len(prefix)] != prefix or ".." in rest or "." in rest:
        return None
    return "/".join(rest)


def _open(kernel: Kernel, version: int, path: str, mounts: list[CgroupMount]) -> DeviceCgroup | None:
    """The first mount's directory of a cgroup that is really there."""
    for mount in mounts:
        relative = below(mount.root, path) if mount.version == version else None
        if relative is None:
            continue
        top = directory = -1
        try:
            top = os.open(mount.point, _DIRECTORY)
            directory = kernel.open_in_root(top, relative, _DIRECTORY) if relative else os.dup(top)
            # Something else may be mounted over it; the device tells hierarchies apart.
            if os.fstat(directory).st_dev == mount.device:
                shown = mount.point.rstrip("/") + ("/" + relative if relative else "")
                found = DeviceCgroup(version, directory, shown or "/", mount.point)
                directory = -1
                return found
        except OSError:
            continue  # covered by another mount, or gone: another mount may show it
        finally:
            for descriptor in (top, directory):
                if descriptor >= 0:
                    os.close(descriptor)
    return None


def _is_top(kernel: Kernel) -> bool:
    """Whether the root of our cgroup namespace is also that of the v1 devices hierarchy, not a group below."""
    try:
        with closing(kernel.cgroup_root(1)) as top:
            os.stat("release_agent", dir_fd=top)  # in no other group, cgroups(7)
            return True
    except OSError:
        return False


def _has_programs(kernel: Kernel) -> bool:
    """Whether the root of our cgroup namespace has device programs: those of an engine that prefers v2, and that
    itself runs in a group of v1."""
    from nvc.kernel import bpf

    try:
        with closing(kernel.cgroup_root(2)) as top:
            return bool(bpf.attached(top)[0])
    except OSError:
        return False


def _in_namespace(kernel: Kernel, version: int, path: str) -> DeviceCgroup | None:
    """The cgroup by a mount of our own: a createContainer hook is in the container's cgroup namespace, and the
    host's mounts do not name what is below its root. None where it may not mount; raises MountError at the root,
    which is no sign there that nothing restricts us."""
    try:
        with closing(kernel.cgroup_root(version)) as top:
            directory = kernel.open_in_root(top, path, _DIRECTORY)
    except OSError as error:
        if path != "/":
            return None
        hint = "call the hook as prestart or createRuntime, " + HINT_SKIP
        raise MountError.of(STEP, _NAMESPACE, error, hint) from None
    return DeviceCgroup(version, directory, (_NAMESPACE + path).rstrip("/"), _NAMESPACE)


def read_file(name: str, directory: int | None = None) -> bytes:
    """A kernel file as `read_all` does, relative to an open directory."""
    return read_all(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory))


def read_all(descriptor: int) -> bytes:
    """The rest of a kernel file, which is closed; OSError EFBIG beyond 16 MiB."""
    with closing(descriptor):
        data = read_up_to(descriptor, _MOST_BYTES)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data
