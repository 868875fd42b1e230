"""The only door to the kernel beyond the standard library. Nothing outside this package imports `nvc._syscalls`."""

from __future__ import annotations

import errno
import fcntl
import posix
import stat
import time

from nvc._syscalls import ffi as ffi
from nvc._syscalls import lib as lib
from nvc.base.errors import InitializationError, of_host
from nvc.base.types import Any
from nvc.base.value import Value


class DescriptorIdentity(Value):
    """What a descriptor stands for."""

    device: int
    inode: int
    mount: int  # as in /proc/PID/mountinfo
    mode: int
    node: int  # the number of the device that a device node stands for


class ApplyTarget(Value):
    """Where a program is executed: descriptors, and the ids as which files are made there."""

    mount_namespace: int  # -1: stay in this one
    rootfs: int
    journal: int  # -1: none
    timeout: float  # seconds
    fsuid: int
    fsgid: int
    leave: bool = False  # others may use this root file system too: undoing leaves all names in it
    keep: bool = False  # what undoes the changes stays after success: the journal, and an old loader cache


class ApplyReport(Value):
    """What the applier says it did. `error` is an errno, 0 for success; `op` an index in the program or -1.

    `failure` is one of lib.NVC_FAILED_*, 0 for success; `step` is text for people.
    """

    error: int
    op: int
    changes: int
    undo_failures: int
    step: str
    path: str
    warnings: tuple[str, ...]
    failure: int = 0


_LOCK_PAUSE = 0.002  # seconds
O_PATH = 0o10000000
O_NOFOLLOW = 0o400000
RESOLVE_CACHED = 0x20


#: mount_setattr(2) on detached trees, without which a mount would be writable for a moment.
FLOOR = (5, 12)


def check_floor(release: str = "") -> None:
    """Raise InitializationError when the kernel (or `release`, as uname(2) gives it) is older than `FLOOR`."""
    release = release or posix.uname().release
    numbers = release.split("-")[0].split("+")[0].split(".")
    if not all(number.isdigit() for number in numbers[:2]) or len(numbers) < 2:
        return  # a name of somebody's own: the system calls will tell
    if (int(numbers[0]), int(numbers[1])) < FLOOR:
        cause = "Linux 5.12 or newer is needed"
        raise InitializationError("check kernel", release, cause, "boot a newer kernel, or use nvc's CDI specs")


def strerror(number: int) -> str:
    """The kernel's text for an errno, in lower case as the peers print it."""
    return posix.strerror(number).lower()


def checked(result: int, path: str = "") -> int:
    """`result`, or the OSError that a negative errno stands for."""
    if result < 0:
        raise OSError(-result, posix.strerror(-result), path)
    return result


def address(data: bytes | bytearray) -> int:
    """Where the bytes of an object are that lives on; 0 for none."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(data))) if data else 0


def fence() -> None:
    """Memory that others write is read before, or written after, what stands behind this.

    Each call of C lets the interpreter's lock go and takes it again, over which no processor moves a load or store.
    """
    lib.nvc_build()


def _text(array: Any) -> str:
    return bytes(ffi.string(array)).decode("utf-8", "replace")


def private_mounts() -> None:
    """Give this process a mount namespace of its own (unshare(2)). Raises OSError."""
    checked(lib.nvc_private_mounts(), "/")


def writable_over(directory: str) -> None:
    """Let things be made in `directory`, in memory and for this mount namespace only. Raises OSError."""
    checked(lib.nvc_writable_over(directory.encode("utf-8", "surrogateescape")), directory)


def process_control(option: int, value: int) -> None:
    """prctl(2) with one argument. Raises OSError."""
    checked(lib.nvc_prctl(option, value))


class LinuxKernel:
    """The running kernel."""

    def open_in_root(self, root: int, path: str, flags: int, follow: bool = True) -> int:
        """Open `path` with every link and `..` confined to the directory `root` (openat2(2)).

        `flags` are open(2)'s; close-on-exec is always set. Without `follow`, a link at the end is refused
        with ELOOP, or opened itself when `flags` has O_PATH. Raises HostError where the host fails: many who
        call this take an OSError for "nothing is there".
        """
        if not follow:
            flags |= O_NOFOLLOW
        fd: int = lib.nvc_open_below(root, path.encode("utf-8", "surrogateescape"), flags, 0)
        if fd < 0:
            of_host(OSError(-fd, posix.strerror(-fd)), "open", path)
        return checked(fd, path)

    def open_regular(self, root: int, path: str) -> int:
        """Open a regular file of an image to read it, as `open_in_root`. Raises OSError, EINVAL for anything else.

        What is there is looked at before it is opened, and that very inode is opened then: to open a device, as
        root of the host, may be to do something with it, and a pipe tells its other end.
        """
        fd = self.open_in_root(root, path, O_PATH)
        try:
            if not stat.S_ISREG(posix.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            return posix.open(f"/proc/self/fd/{fd}", posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
        except OSError as error:
            of_host(error, "open", path)
            raise
        finally:
            posix.close(fd)

    def open_cached(self, root: int, path: str) -> int:
        """Open `path` below `root` with O_PATH, if the kernel has the whole path in its cache.

        No file system is asked: one of the container's own may never answer. Raises OSError; its number is EAGAIN
        where a file system would have to be asked.
        """
        name = path.encode("utf-8", "surrogateescape")
        return checked(lib.nvc_open_below(root, name, O_PATH, RESOLVE_CACHED), path)

    def identity(self, fd: int) -> DescriptorIdentity:
        """What a descriptor stands for, as the kernel remembers it; its file system is not asked (statx(2))."""
        found = ffi.new("struct nvc_identity *")
        checked(lib.nvc_identity(fd, found))
        return DescriptorIdentity(*(int(getattr(found, name)) for name in DescriptorIdentity._fields))

    def pidfd_open(self, pid: int) -> int:
        """A descriptor that stands for `pid` even after it is reused (pidfd_open(2))."""
        return checked(lib.nvc_pidfd_open(pid), f"pid {pid}")

    def pidfd_send_signal(self, pidfd: int, signal: int) -> None:
        """Signal a process by descriptor; signal 0 only asks whether it lives."""
        checked(lib.nvc_pidfd_send_signal(pidfd, signal))

    def capget(self) -> tuple[int, int]:
        """The effective and permitted sets as bit masks (capget(2))."""
        sets = ffi.new("uint64_t[2]")
        checked(lib.nvc_capget(sets, sets + 1))
        return int(sets[0]), int(sets[1])

    def capset(self, kept: int) -> None:
        """Keep at most these of what this process is permitted, and none inheritable (capset(2))."""
        checked(lib.nvc_capset(kept))

    def capbset_keep(self, bounding: int) -> None:
        """Drop everything else from the bounding set (capabilities(7))."""
        checked(lib.nvc_capbset_keep(bounding))

    def lock(self, fd: int, timeout: float) -> None:
        """Take an exclusive flock(2) within `timeout` seconds; raises OSError ETIMEDOUT.

        flock(2) has no time-out of its own, and an alarm would reach into the caller's handling of signals.
        """
        end = 0.0
        while True:
            try:
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                end = end or time.monotonic() + timeout
            if time.monotonic() >= end:
                checked(-errno.ETIMEDOUT)
            time.sleep(_LOCK_PAUSE)

    def is_mount_root(self, fd: int) -> bool:
        """Whether the descriptor is the root of a mount (statx(2), STATX_ATTR_MOUNT_ROOT)."""
        return bool(checked(lib.nvc_is_mount_root(fd)))

    def birth_time(self, fd: int) -> int:
        """When a file was made, ns since 1970; 0 where its file system does not say (statx(2))."""
        return int(lib.nvc_birth_time(fd))

    def cgroup_root(self, version: int) -> int:
        """The root of this process's cgroup namespace, on a mount of its own (fsmount(2)); 1: of devices."""
        return checked(lib.nvc_cgroup_root(version), "cgroup namespace")

    def apply(self, program: bytes, place: ApplyTarget) -> ApplyReport:
        """Execute a packed program in a container's mount namespace, in a child that runs no Python.

        Raises OSError ETIMEDOUT or ECHILD when the child gave no report: the journal then says what is there.
        """
        fields = dict(zip(place._fields, place))
        fields["timeout_ms"] = int(fields.pop("timeout") * 1000)
        target = ffi.new("struct nvc_apply_target *", fields)
        report = ffi.new("struct nvc_report *")
        checked(lib.nvc_apply(program, len(program), target, report))
        return ApplyReport(
            report.error, report.op, report.changes, report.undo_failures, _text(report.step), _text(report.path),
            tuple(_text(report.warnings).splitlines()), report.failure,
        )  # fmt: skip


#: What discovery and the executor ask of the kernel; a test passes a subclass.
Kernel = LinuxKernel
