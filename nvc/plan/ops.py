"""The operations of a plan. Frozen data only: describing, exporting and applying them is done elsewhere.

An operation that mounts something has `attributes`, MOUNT_ATTR_* of mount_setattr(2): they say with which options.
Only a loader cache that must be bound has its options elsewhere, in native/core/ldcache/cachefile.c. Whoever goes
through operations ends with `assert_never`, so that mypy finds one that is left out.
`source` is a path inside the driver root, `target` an absolute path inside the container's rootfs.
"""

from __future__ import annotations

from nvc.base.errors import InternalError
from nvc.base.types import NoReturn
from nvc.base.value import Value
from nvc.model.facts import Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model.slices.slice import Slice


RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
#: What every mount has; what device nodes have; what all else has; what all else has that holds no code.
BASE = NOSUID
NODES = BASE | NOEXEC  # with NODEV nobody could open them
FILES = BASE | NODEV
DATA = FILES | NOEXEC
#: As mount(8) calls them.
_NAMES = ((RDONLY, "ro"), (NOSUID, "nosuid"), (NODEV, "nodev"), (NOEXEC, "noexec"))


def options_of(attributes: int) -> tuple[str, ...]:
    """Attributes of a mount as mount(8) spells them: `ro`, `nosuid`, ..."""
    return tuple(name for bit, name in _NAMES if attributes & bit)


class BindFile(Value):
    """Bind one regular file, read-only."""

    source: str
    target: str
    identity: Identity
    noexec: bool = False

    @property
    def attributes(self) -> int:
        """The mount's options, MOUNT_ATTR_*."""
        return RDONLY | (DATA if self.noexec else FILES)


class BindHostFile(Value):
    """Bind one of nvc's own files or directories, `source` being a path of the host.

    Without an identity it is made just before the plan is applied (a quota, the place of a socket): noexec then.
    """

    source: str
    target: str
    identity: Identity | None
    is_directory: bool = False
    writable: bool = False

    @property
    def attributes(self) -> int:
        """The mount's options, MOUNT_ATTR_*."""
        return (DATA if self.identity is None else FILES) | (0 if self.writable else RDONLY)


class BindInside(Value):
    """Bind one regular file of the container's own to another place in it, read-only.

    It is held by its descriptor from when it was looked at: no path of the container is followed twice.
    """

    source: str  # in the container
    target: str
    identity: Identity

    attributes = RDONLY | FILES


class BindSocket(Value):
    """Bind a socket or a service's directory. Programs connect through a read-only mount too (unix(7))."""

    source: str
    target: str
    is_directory: bool = False
    writable: bool = False  # the ledger of the slice around this container only

    @property
    def attributes(self) -> int:
        """The mount's options, MOUNT_ATTR_*."""
        return DATA | (0 if self.writable else RDONLY)


class BindProc(Value):
    """Bind an entry of the kernel's /proc/driver/nvidia."""

    source: str
    target: str
    is_directory: bool = True
    writable: bool = False  # the state of a simulated driver only

    @property
    def attributes(self) -> int:
        """The mount's options, MOUNT_ATTR_*."""
        return DATA | (0 if self.writable else RDONLY)


class BindDevice(Value):
    """Bind a character device whose rdev must be major:minor."""

    source: str
    target: str
    major: int
    minor: int

    attributes = RDONLY | NODES


class BindDeviceDirectory(Value):
    """Bind a directory of device nodes (/dev/nvidia-caps), read-only."""

    source: str
    target: str

    attributes = RDONLY | NODES


class AllowDevice(Value):
    """Let the container's device cgroup read and write c major:minor (never mknod)."""

    major: int
    minor: int


class Tmpfs(Value):
    """A small tmpfs, mode 0555, filled before it is attached.

    `directories` and `files` are relative to it; files are (name, content), mode 0444.
    """

    target: str
    directories: tuple[str, ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()

    attributes = DATA


class Ledger(Value):
    """A tmpfs with room for the one file `ledger` of `size` bytes, mode 0666, that begins with `content`.

    One that an earlier run has mounted stays as it is.
    """

    target: str
    content: bytes
    size: int
    label: str = ""  # of SELinux, for everything in it; "": as the kernel does

    attributes = DATA


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


#: What mounts a source on a target.
BINDS = (BindFile, BindHostFile, BindInside, BindSocket, BindProc, BindDevice, BindDeviceDirectory)

Bind = BindFile | BindHostFile | BindInside | BindSocket | BindProc | BindDevice | BindDeviceDirectory
Op = Bind | AllowDevice | Tmpfs | Ledger | Symlink | UpdateLoaderCache


def assert_never(op: NoReturn) -> NoReturn:
    """For what comes after all kinds of operations: type checkers know that nothing does."""
    raise InternalError("read the plan", cause=f"unknown operation {op!r}")


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
