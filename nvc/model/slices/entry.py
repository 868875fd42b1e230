"""The registry's record of one slice: the file `about` in its directory, lines of `name value`."""

from __future__ import annotations

import errno
import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import NvcError
from nvc.base.files import closing
from nvc.base.types import Any
from nvc.base.value import Value
from nvc.model.request import Told
from nvc.model.slices import layout

ABOUT_LIMIT = 1 << 20
FILE_LEASE_TIME = 0.2  # seconds: the registry may be locked meanwhile, and others wait for that
MODE = 0o711  # of an entry's directory
REMOVE = "`nvc-cli vgpu rm` removes it"
#: The words of an entry's lines, and its fields. `fence` is what older versions have. From most between
#: `container` and `holds` its name follows: see nvc.slices.store.status.named.
_FIELDS = {
    "pid": "pid", "start": "start", "created": "created", "rootfs": "rootfs", "libraries": "libs_dir",
    "fence": "isolation", "mounts": "mounts", "server": "server", "container": "container", "bundle": "bundle",
    "cgroup": "cgroup", "limited": "limited", "program": "program", "claim": "claim", "holds": "holds",
    **{name.replace("_", "-"): name for name in Told._fields},
}  # fmt: skip
_NUMBERS = ("pid", "start", "created", "mounts")
_ALWAYS = ("pid", "start", "created", "rootfs", "libraries")  # the others where they say something
#: Likewise of a device's numbers, each on a line of its own, `WORD PLACE NUMBER`, where it is not the usual one.
_OF_DEVICE = {"policy": "asked_policy", "reserved": "reserved", "lowered": "lowered"}


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


def text_of(entry: Entry) -> str:
    """The content of the file `about` of an entry."""
    values = {word: str(getattr(entry, name) or "") for word, name in _FIELDS.items()}
    values |= {word: str(getattr(entry, word)) for word in _NUMBERS if word in _ALWAYS}
    lines = [f"{word} {_quoted(text)}" for word, text in values.items() if text or word in _ALWAYS]
    lines += [f"device {d.uuid} {d.index} {d.memory} {_quoted(d.name)}" for d in entry.devices]
    for word, name in _OF_DEVICE.items():
        numbers = ((place, getattr(d, name)) for place, d in enumerate(entry.devices))
        lines += [f"{word} {place} {number}" for place, number in numbers if number != EntryDevice._defaults[name]]
    return "".join(f"{line}\n" for line in (f"lines {len(lines)}", *lines))


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
    fields = {word: "0" if word in _NUMBERS else "" for word in _FIELDS}
    devices = []
    try:
        with closing(open_own(f"{path}/about")) as fd:
            text = os.pread(fd, ABOUT_LIMIT, 0).decode()
        lines = text.split("\n")
        if lines.pop() or not lines or lines[0] != f"lines {len(lines) - 1}":
            raise ValueError("cut short")
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "device":
                uuid, index, memory, device = value.split(" ", 3)
                devices.append(EntryDevice(uuid, index, int(memory), _unquoted(device)))
            elif name in _OF_DEVICE:
                place, number = (int(word) for word in value.split(" ", 1))
                if name == "policy" and number >> 32:  # negative, or more than a quota holds
                    raise ValueError(f"policy {number} is out of range")
                devices[place] = devices[place].replace(**{_OF_DEVICE[name]: number})
            elif name in fields:
                fields[name] = value
        known: dict[str, Any] = {
            name: int(fields[word]) if word in _NUMBERS else _unquoted(fields[word])
            for word, name in _FIELDS.items()
        }
        return Entry(path.rpartition("/")[2], path, devices=tuple(devices), **known)
    except OSError as error:
        raise RegistryError.of("read slice", f"{path}/about", error, REMOVE) from None
    except (ValueError, IndexError) as error:
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


def _quoted(text: str) -> str:
    """Any name as one line of ASCII; other bytes become %xx."""
    raw = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != 0x25 else f"%{byte:02x}" for byte in raw)


def _unquoted(text: str) -> str:
    first, *rest = text.split("%")
    raw = first.encode("ascii") + b"".join(
        bytes.fromhex(part[:2]) + part[2:].encode("ascii") for part in rest
    )
    return raw.decode("utf-8", "surrogateescape")
