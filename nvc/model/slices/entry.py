"""The registry's record of one slice: the file `about` in its directory, JSON of what is not as usual."""

from __future__ import annotations

import errno
import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base import fastjson
from nvc.base.errors import NvcError
from nvc.base.fastjson import NUMBER, WORD
from nvc.base.files import closing
from nvc.base.types import Any, Iterable
from nvc.base.value import Value
from nvc.model.request import Told
from nvc.model.slices import layout

ABOUT_LIMIT = 1 << 20
FILE_LEASE_TIME = 0.2  # seconds: the registry may be locked meanwhile, and others wait for that
MODE = 0o711  # of an entry's directory
REMOVE = "`nvc-cli vgpu rm` removes it"
class RegistryError(NvcError, code="NVC-2101", stage="vgpu", doctor="vgpu"):
    """A slice cannot be found or changed."""


class EntryDevice(Value):
    """What the registry knows of a device of a slice beside its quota."""

    uuid: str
    index: str
    memory: int  # bytes; 0: not known
    name: str
    asked_policy: int = layout.POLICY_NATIVE  # holds where the device has no policy of its own
    reserved: int = 0  # bytes that no other slice can reserve
    lowered: int = 0  # the limit of memory before it was lowered, bytes; 0: the slice has been within the new one


class Entry(Told):
    """A slice as it was made."""

    key: str
    directory: str  # of the entry, on the host
    pid: int  # as /proc has it, of the process that the slice was made for
    start: int  # when that process began, in clock ticks since boot
    rootfs: str  # as the host calls it; "" for a plain process
    libs_dir: str  # in the container
    created: int  # seconds since the epoch
    devices: tuple[EntryDevice, ...]
    isolation: str = ""  # of SliceRequest.isolation
    container: str = ""  # id of its runtime, where that said it
    bundle: str = ""  # directory of its OCI configuration, likewise
    cgroup: str = ""  # path of its process's, where no id was said
    limited: str = ""  # inode and directory of the cgroup whose memory the driver limits
    program: str = ""  # name of a program without a container
    mounts: int = 0  # number of the mount namespace, never given again; 0: the kernel does not tell one
    claim: str = ""  # NAMESPACE/NAME of a claim of Kubernetes that it was made for, before its containers
    holds: str = ""  # of Slice: what of claims its devices are
    server: str = ""  # UUID of the device whose shared MPS server its programs can use

    @property
    def namespace(self) -> int:
        """Inode of the mount namespace."""
        return int(self.key.partition("-")[0], 16)

    @property
    def quota(self) -> str:
        """Path of the quota file on the host."""
        return f"{self.directory}/quota"


#: What a file has of each field. `policy` is a number of 32 bits in a quota; no limit is the greatest of 64 bits.
_OF_DEVICE: dict[str, Any] = {
    "uuid": str, "index": str, "memory": NUMBER, "name": str, "asked_policy": WORD, "reserved": NUMBER,
    "lowered": range(1 << 64),
}  # fmt: skip
_SHAPES: dict[str, Any] = {
    **{name: str for name in Entry._fields if name not in ("key", "directory", "devices")},
    **dict.fromkeys(("pid", "start", "created", "mounts"), NUMBER),
}


def _told(value: Value, names: Iterable[str]) -> dict[str, Any]:
    usual = value._defaults
    return {name: told for name in names if (told := getattr(value, name)) != usual.get(name, ...)}


def text_of(entry: Entry) -> str:
    """The content of the file `about` of an entry."""
    devices = [_told(device, _OF_DEVICE) for device in entry.devices]
    return fastjson.write({**_told(entry, _SHAPES), "devices": devices}, b"").decode() + "\n"


def open_own(path: str, flags: int = os.O_RDONLY, seconds: float = FILE_LEASE_TIME) -> int:
    """Open a file of the registry, and check that only this user can have written it. Raises OSError.

    Waits up to `seconds` for the end of a lease that a process of the slice holds on the file. The error then names
    that process.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:
        from nvc.base import filelease  # threads cost time, and no start needs them

        found = _checked(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC), path)
        return filelease.opened(found, path, flags, seconds)
    return _checked(fd, path)


def _checked(fd: int, path: str) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(fd)
        raise PermissionError(errno.EPERM, "not a file of root's alone", path)
    return fd


def announce(directory: str) -> None:
    """Wake nvcd, which watches the registry, after a slice was changed in place. Raises OSError.

    The kernel reports even a change to the same mode. The directory's mtime does not change, which tells nvcd that
    the files it has open are still the right ones.
    """
    os.chmod(directory, MODE)


def create(path: str, mode: int) -> int:
    """Create a file of the registry and return its descriptor. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    os.fchmod(fd, mode)
    return fd


def write_about(directory: str, text: str) -> None:
    """Replace the file `about` of an entry; the caller holds the registry's lock. Raises OSError."""
    temporary = f"{directory}/.about"
    try:
        os.unlink(temporary)
    except FileNotFoundError:
        pass
    with closing(create(temporary, 0o600)) as fd:
        data = text.encode()
        if os.write(fd, data) < len(data):  # the one that is there stays
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), temporary)
    os.rename(temporary, f"{directory}/about")


def read_entry(path: str) -> Entry:
    """Read the entry in the directory `path`. Raises RegistryError if it is incomplete or malformed."""
    try:
        with closing(open_own(f"{path}/about")) as fd:
            told = fastjson.parse(os.pread(fd, ABOUT_LIMIT + 1, 0), ABOUT_LIMIT)
        devices = tuple(EntryDevice(**_fields(one, _OF_DEVICE)) for one in told["devices"])
        return Entry(path.rpartition("/")[2], path, devices=devices, **_fields(told, _SHAPES))
    except OSError as error:
        raise RegistryError.of("read slice", f"{path}/about", error, REMOVE) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RegistryError("read slice", f"{path}/about", error, REMOVE) from None


def entry_at(path: str) -> Entry | RegistryError | None:
    """The entry in the directory `path`, or why it cannot be read; None where there is none, see `is_remnant`."""
    try:
        return read_entry(path)
    except RegistryError as error:
        return None if is_remnant(path) else error


def is_remnant(path: str) -> bool:
    """Whether the directory of an entry is gone, or is what a removal left that was killed: no slice."""
    try:
        return not {"about", "quota"}.intersection(os.listdir(path))
    except FileNotFoundError:
        return True
    except OSError:
        return False  # it counts as a slice


def _fields(told: Any, shapes: dict[str, Any]) -> dict[str, Any]:
    """The fields that are told. Another version may have more."""
    return {name: fastjson.checked(value, shapes[name]) for name, value in told.items() if name in shapes}
