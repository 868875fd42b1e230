"""The container to configure, held by descriptors: a pid can be reused and a path can be swapped, these cannot."""

from __future__ import annotations

import errno
import fcntl
import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.base.errors import ContainerError, InputError, NvcError
from nvc.base.files import Closable, closing, lines_of
from nvc.base.value import Value
from nvc.kernel import O_PATH, Kernel
from nvc.kernel.processes import has_ended_by, namespace_by, namespace_number, open_root, own_namespace

#: Instead of a pid: this process, which its runtime has started in the container's namespaces.
SELF = -1

_DIRECTORY = O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MULTIARCH = {"x86_64": ("x86_64-linux-gnu", "i386-linux-gnu"), "aarch64": ("aarch64-linux-gnu", "")}
#: The loaders of glibc and musl.
LOADERS = {
    "x86_64": ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"),
    "aarch64": ("/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1"),
}


class Layout(Value):
    """Where this image keeps programs and libraries."""

    bins_dir: str
    libs_dir: str
    libs32_dir: str  # "": nowhere
    musl: bool  # no glibc loader: the driver's libraries cannot be loaded
    as_host: bool = False  # no image is known yet (CDI): everything goes where the driver root has it


class Target(Closable):
    """An open container. `mount_namespace` is -1 when it is this process's own (standalone mode)."""

    __slots__ = ("pid", "pidfd", "proc", "mount_namespace", "rootfs", "rootfs_path", "fsuid", "fsgid", "layout",
                 "user_namespace", "id", "bundle", "standalone", "host")  # fmt: skip

    pid: int
    pidfd: int
    proc: int  # /proc/PID
    mount_namespace: int
    rootfs: int  # in the container's mount namespace
    rootfs_path: str
    fsuid: int  # the container's root, as this process's user namespace numbers it
    fsgid: int
    layout: Layout
    user_namespace: bool  # the container has one of its own
    id: str  # of its runtime; "" where the caller does not say
    bundle: str  # directory of its OCI configuration; likewise
    standalone: bool  # a caller has made it and starts no runtime: other hosts may use the same files
    host: bool  # a root file system of the host, without a container: what is done to it stays until it is undone

    def key(self, kernel: Kernel) -> str:
        """A name for the rootfs that every mount namespace agrees on: device, inode, birth in hexadecimal.

        The first two alone return soon: the kernel gives an overlay that is mounted the device number of the
        last one that was unmounted, and file systems give a new directory the inode of a removed one.
        """
        st = os.stat(self.rootfs)
        return f"{st.st_dev:x}-{st.st_ino:x}-{kernel.birth_time(self.rootfs):x}"

    def duplicate(self) -> Target:
        """A copy that holds the container by descriptors of its own; the caller closes it. Raises OSError."""
        copy = Target()
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        for name in ("pidfd", "proc", "mount_namespace", "rootfs"):
            fd = getattr(self, name)
            setattr(copy, name, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) if fd >= 0 else -1)
        return copy

    def close(self) -> None:
        """Close every descriptor."""
        for fd in (self.pidfd, self.proc, self.mount_namespace, self.rootfs):
            if fd >= 0:
                os.close(fd)


def open_target(
    kernel: Kernel, pid: int, rootfs: str, id: str = "", bundle: str = "", host: bool = False
) -> Target:
    """The container whose init is `pid` and whose root file system is `rootfs`, as the caller's runtime says.

    With pid 0 (standalone) the parent process is taken, and it may share this mount namespace; with SELF, or where
    the parent is outside of this pid namespace, it is this process. With `host` there is no container, only
    `rootfs` as seen from here; so it is in standalone mode in the mount namespace of process 1. The container may
    have pivoted already: `rootfs` is then the host's name for its root directory. `id` and `bundle` are what its
    runtime says of it; they are kept with a slice, to find its engine's name.
    Raises InputError for a bad path, ContainerError when pid and rootfs do not belong together.
    """
    if not rootfs.startswith("/") or not rootfs.strip("/"):
        raise InputError("invalid rootfs directory", rootfs, "want an absolute path other than /")
    target = Target()
    # A parent outside of this pid namespace has no number here; it has made the namespace for this process.
    target.pid = os.getpid() if pid == SELF else pid or os.getppid() or os.getpid()
    target.pidfd = target.proc = target.mount_namespace = target.rootfs = -1
    target.rootfs_path, target.id, target.bundle = rootfs, id, bundle
    target.standalone = target.host = False
    try:
        _open(kernel, target, standalone=pid in (0, SELF))
        target.host = host or pid == 0 and target.mount_namespace < 0 and is_of_process_1()
        target.standalone = pid == 0 and not host
        target.layout = _layout(kernel, target.rootfs)
        # Everything was opened below /proc/PID: if the process still lives now, all of it was that process's.
        kernel.pidfd_send_signal(target.pidfd, 0)
    except OSError as error:
        gone = isinstance(error, ProcessLookupError) or target.pidfd >= 0 and has_ended_by(target.pidfd)
        target.close()
        raise ContainerError.of(
            "open container", error.filename or f"pid {target.pid}", error,
            "the process has ended: start the container again" if gone else "name a directory that is there"
            if host and error.errno in (errno.ENOENT, errno.ENOTDIR) else "",
        ) from None  # fmt: skip
    except NvcError:
        target.close()
        raise
    return target


def is_of_process_1() -> bool:
    """Whether this mount namespace is; where that is not told, it is not."""
    try:
        return namespace_number(1, "mnt") == own_namespace("mnt")
    except OSError:
        return False


def _open(kernel: Kernel, target: Target, standalone: bool) -> None:
    target.pidfd = kernel.pidfd_open(target.pid)
    number = _number_in_proc(target.pidfd)
    target.proc = os.open(f"/proc/{number}", _DIRECTORY)
    target.mount_namespace = namespace_by(target.pidfd, number, "mnt")
    if os.stat(target.mount_namespace).st_ino == own_namespace("mnt"):
        os.close(target.mount_namespace)
        target.mount_namespace = -1
    if target.mount_namespace < 0 and not standalone:
        raise ContainerError(
            "open container", f"pid {target.pid}", "shares this mount namespace",
            "give the pid of the container's init, or no --pid from within a container's own hook",
        )  # fmt: skip
    target.user_namespace = not _shares(target.pidfd, number, "user")
    target.fsuid = _mapped_root(target, "uid_map") if target.user_namespace else os.geteuid()
    target.fsgid = _mapped_root(target, "gid_map") if target.user_namespace else os.getegid()
    # Of itself a process need not ask another.
    root = os.open("/", _DIRECTORY) if target.pid == os.getpid() else open_root(number)
    target.rootfs = _open_rootfs(kernel, target, root)


def unrecorded(rootfs: int) -> str:
    """Where nvc has mounted a tmpfs of its own below the directory, as this process sees it; "": nowhere.

    In every root file system it covers /proc/driver/nvidia, for the GPUs that are not selected.
    """
    base = os.readlink(f"/proc/self/fd/{rootfs}").replace(" ", "\\040") + "/"
    nvc = [place for place, kind, source in _mounts("/proc/self/mountinfo") if (kind, source) == ("tmpfs", "nvc")]
    return next((place for place in nvc if place.startswith(base)), "")


def _mounts(path: str, directory: int | None = None) -> list[tuple[str, str, str]]:
    """Place, kind and source of each mount in a list of them (proc(5), mountinfo), as the kernel escapes them."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    text = b""
    with closing(fd):
        while part := os.read(fd, 65536):
            text += part
    found = []
    for line in lines_of(text.decode("utf-8", "surrogateescape")):
        fields, _, rest = line.partition(" - ")
        kind, source = rest.split(" ")[:2]
        found.append((fields.split(" ")[4], kind, source))
    return found


def shares_mount_namespace(kernel: Kernel, pid: int) -> bool:
    """Whether the process `pid`, as this process counts, is in our mount namespace. Raises ContainerError.

    Where the kernel does not tell, it is taken to be: in a container's user namespace the runtime's own
    process, which is not dumpable, stays closed to us.
    """
    try:
        with closing(kernel.pidfd_open(pid)) as pidfd:
            return _shares(pidfd, _number_in_proc(pidfd), "mnt")
    except PermissionError:
        return True
    except OSError as error:
        raise ContainerError.of("open container", f"pid {pid}", error) from None


def _shares(pidfd: int, number: int, kind: str) -> bool:
    """Whether a namespace of a process, which has this number in /proc, is ours. Raises OSError."""
    with closing(namespace_by(pidfd, number, kind)) as fd:
        return os.stat(fd).st_ino == own_namespace(kind)


def _number_in_proc(pidfd: int) -> int:
    """The process id of `pidfd` where /proc counts from, which need not be where this process does.

    In a createContainer hook /proc is still the host's, but pid 1 the container's. Raises ProcessLookupError
    where /proc does not show the process.
    """
    with closing(os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC)) as fd:
        lines = os.read(fd, 4096).split(b"\n")
    number = next((int(line[4:]) for line in lines if line.startswith(b"Pid:")), 0)
    if number <= 0:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), "/proc")
    return number


def _open_rootfs(kernel: Kernel, target: Target, root: int) -> int:
    if target.mount_namespace < 0 or _same(os.stat(root), os.stat("/")):
        # Not pivoted: the path is as on the host, seen from the container's namespace.
        with closing(root):
            rootfs = kernel.open_in_root(root, target.rootfs_path, _DIRECTORY)
            whole = _same(os.stat(rootfs), os.stat(root))  # by way of a link, or of `/..`
        if whole:
            os.close(rootfs)
            raise InputError("invalid rootfs directory", target.rootfs_path, "leads to /: want that of a container")
        if target.mount_namespace >= 0 and not kernel.is_mount_root(rootfs) and _has_other_root(target):
            os.close(rootfs)
            raise _not_its_rootfs(target, "is not a mount of its namespace")
        return rootfs
    try:
        same = _same(os.stat(root), os.stat(target.rootfs_path))
    except OSError:
        same = False
    if not same:
        os.close(root)
        raise _not_its_rootfs(target, "is not its root directory")
    return root


def _has_other_root(target: Target) -> bool:
    """Whether the process will have another root directory: one that has a /proc, which is not on the host.

    Runtimes that start containers by pivot_root(2) mount it before they call hooks. gVisor's does not.
    """
    own = {place for place, kind, _ in _mounts("/proc/self/mountinfo") if kind == "proc"}
    its = {place for place, kind, _ in _mounts("mountinfo", target.proc) if kind == "proc"}
    return any(place.endswith("/proc") for place in its - own)


def _not_its_rootfs(target: Target, why: str) -> ContainerError:
    return ContainerError(
        "open rootfs", target.rootfs_path, f"{why} (pid {target.pid})",
        "pid and rootfs must be of the same container; name the hook of gVisor nvidia-container-runtime-hook",
    )  # fmt: skip


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _mapped_root(target: Target, name: str) -> int:
    """What the container's id 0 is outside, from uid_map or gid_map (user_namespaces(7))."""
    with closing(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=target.proc)) as fd:
        lines = os.read(fd, 65536).split(b"\n")
    for line in lines:
        fields = line.split()
        if len(fields) == 3 and int(fields[0]) == 0:
            return int(fields[1])
    raise ContainerError(
        "read id map", name, "the container's root is not mapped", "map id 0 of the container"
    )


def exists(kernel: Kernel, rootfs: int, path: str) -> bool:
    """Whether `path` exists in the rootfs, links followed inside it."""
    try:
        os.close(kernel.open_in_root(rootfs, path, O_PATH))
    except OSError:
        return False
    return True


def _layout(kernel: Kernel, rootfs: int) -> Layout:
    machine = os.uname().machine
    multiarch, multiarch32 = _MULTIARCH[machine]
    musl = not exists(kernel, rootfs, LOADERS[machine][0]) and exists(kernel, rootfs, LOADERS[machine][1])
    if exists(kernel, rootfs, "/etc/debian_version"):
        libs32 = f"/usr/lib/{multiarch32}" if multiarch32 else ""
        return Layout("/usr/bin", f"/usr/lib/{multiarch}", libs32, musl)
    return Layout("/usr/bin", "/usr/lib64", _libs32(kernel, rootfs) if multiarch32 else "", musl)


def _libs32(kernel: Kernel, rootfs: int) -> str:
    if exists(kernel, rootfs, "/usr/lib32"):
        return "/usr/lib32"
    try:
        lib = kernel.open_in_root(rootfs, "/usr/lib", _DIRECTORY)
    except OSError:
        return ""
    try:
        lib64 = kernel.open_in_root(rootfs, "/usr/lib64", _DIRECTORY)
    except OSError:
        os.close(lib)
        return "/usr/lib"
    same = _same(os.stat(lib), os.stat(lib64))
    os.close(lib)
    os.close(lib64)
    return "" if same else "/usr/lib"
