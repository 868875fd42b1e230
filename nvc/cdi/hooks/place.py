"""Inspects paths in the container's rootfs, always through its descriptor. Changes nothing."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.kernel import O_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel

MISSING, LINK, OTHER = range(3)
_MOUNTS_MAX = 16 << 20  # bytes of mountinfo


def mount_id(fd: int) -> int:
    """The id of the mount that a descriptor is on (proc(5), fdinfo)."""
    for line in _read(f"/proc/self/fdinfo/{fd}", 4096).split(b"\n"):
        if line.startswith(b"mnt_id:"):
            return int(line[7:])
    return -1


def kind_at(kernel: Kernel, rootfs: int, path: str) -> int:
    """The kind of file at `path`, final links not followed: MISSING, LINK or OTHER. Raises OSError."""
    try:
        fd = kernel.open_in_root(rootfs, path, O_PATH, follow=False)
    except FileNotFoundError:
        return MISSING
    try:
        return LINK if stat.S_ISLNK(os.fstat(fd).st_mode) else OTHER
    finally:
        os.close(fd)


def is_foreign_readonly(kernel: Kernel, rootfs: int, directory: str) -> bool:
    """Whether `directory` is on a read-only mount other than the rootfs, such as a volume of the host.

    The applier writes to a read-only rootfs through a clone of its mount. It must not do so to a volume that a link
    of the image leads to.
    """
    try:
        fd = kernel.open_in_root(rootfs, directory, O_PATH | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        return bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY) and mount_id(fd) != mount_id(rootfs)
    finally:
        os.close(fd)


def mounted_names(directory: str) -> list[str]:
    """Names in `directory`, a path of this mount namespace without links, on which something is mounted.

    Source: /proc/self/mountinfo. These are hints: check the descriptor after opening one.
    """
    prefix = (directory.rstrip("/") + "/").encode("utf-8", "surrogateescape")
    found = []
    for line in _read("/proc/self/mountinfo", _MOUNTS_MAX).split(b"\n"):
        fields = line.split(b" ", 5)
        if len(fields) < 6:
            continue
        point = _unescaped(fields[4])
        name = point[len(prefix) :]
        if point.startswith(prefix) and name and b"/" not in name:
            found.append(name.decode("utf-8", "surrogateescape"))
    return found


def _unescaped(field: bytes) -> bytes:
    """A field of mountinfo, which writes space, tab, newline and backslash as octal, as it was."""
    if b"\\" not in field:
        return field
    for code, character in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, character)
    return field


def _read(path: str, limit: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        room = limit
        while room > 0 and (part := os.read(fd, min(room, 1 << 16))):
            parts.append(part)
            room -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)
