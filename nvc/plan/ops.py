"""The operations of a plan. Frozen data only: describing, exporting and applying them is done elsewhere.

`source` is a path inside the driver root, `target` an absolute path inside the container's rootfs.
"""

from __future__ import annotations

from nvc.model import Identity
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from nvc.slices.model.slice import Slice


class BindFile(Value):
    """Bind one regular file, read-only: ro, nosuid, nodev."""

    source: str
    target: str
    identity: Identity
    noexec: bool = False


class BindHostFile(Value):
    """Bind one of nvc's own files or directories, `source` being a path of the host: ro, nosuid, nodev.

    Without an identity it is made just before the plan is applied (a quota, the place of a socket): noexec then.
    """

    source: str
    target: str
    identity: Identity | None
    is_directory: bool = False
    writable: bool = False


class BindInside(Value):
    """Bind one regular file of the container's own to another place in it: ro, nosuid, nodev.

    It is held by its descriptor from when it was looked at: no path of the container is followed twice.
    """

    source: str  # in the container
    target: str
    identity: Identity


class BindSocket(Value):
    """Bind a socket or a service's directory: nosuid, nodev, noexec, writable."""

    source: str
    target: str
    is_directory: bool = False


class BindProc(Value):
    """Bind an entry of the kernel's /proc/driver/nvidia: ro, nosuid, nodev, noexec."""

    source: str
    target: str
    is_directory: bool = True
    writable: bool = False  # the state of a simulated driver only


class BindDevice(Value):
    """Bind a character device whose rdev must be major:minor: ro, nosuid, noexec (never nodev)."""

    source: str
    target: str
    major: int
    minor: int


class BindDeviceDirectory(Value):
    """Bind a directory of device nodes (/dev/nvidia-caps): nosuid, noexec."""

    source: str
    target: str


class AllowDevice(Value):
    """Let the container's device cgroup read and write c major:minor (never mknod)."""

    major: int
    minor: int


class Tmpfs(Value):
    """A small tmpfs, mode 0555, filled before it is attached: nosuid, nodev, noexec.

    `directories` and `files` are relative to it; files are (name, content), mode 0444.
    """

    target: str
    directories: tuple[str, ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()


class Ledger(Value):
    """A tmpfs with room for the one file `ledger` of `size` bytes, mode 0666, that begins with `content`:
    nosuid, nodev, noexec. One that an earlier run has mounted stays as it is."""

    target: str
    content: bytes
    size: int
    label: str = ""  # of SELinux, for everything in it; "": as the kernel does


class Symlink(Value):
    """A link whose text is `text`. `fallback` (a target of a BindFile) is what must be reached when a
    regular file of the image stands in its place: the file is then covered by the same bind."""

    text: str
    target: str
    fallback: str = ""


class LoaderEntry(Value):
    """One line of ld.so.cache."""

    soname: str
    path: str  # in the container
    arch: str  # x86_64, i386, aarch64, arm


class UpdateLoaderCache(Value):
    """Merge `entries` into the container's /etc/ld.so.cache, before older entries of the same name."""

    entries: tuple[LoaderEntry, ...]


if TYPE_CHECKING:
    Op: TypeAlias = (
        BindFile
        | BindHostFile
        | BindInside
        | BindSocket
        | BindProc
        | BindDevice
        | BindDeviceDirectory
        | AllowDevice
        | Tmpfs
        | Ledger
        | Symlink
        | UpdateLoaderCache
    )


class Plan(Value):
    """Ordered operations for one container, and what a reader of the plan should know."""

    driver_root: str  # sources of files, sockets and firmware
    system_root: str  # sources of BindProc: `/`, but the driver root of a simulated driver
    device_root: str  # sources of BindDevice
    driver_label: str
    devices: tuple[str, ...]  # UUIDs of the selected GPUs and MIG devices
    ops: tuple[Op, ...]
    warnings: tuple[str, ...] = ()
    slice: Slice | None = None
