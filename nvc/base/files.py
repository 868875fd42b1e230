"""Closes descriptors at the end of a block, reads within bounds, splits lines, and replaces files at once."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import AnyStr

    from typing_extensions import Self

#: The attribute with the access control list of a file (acl(5)).
ACL = "system.posix_acl_access"
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class closing:
    """`with closing(os.open(...)) as fd:` closes `fd` when the block ends, also by an exception."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


class Closable:
    """Something with `close`, which a `with` block calls at its end."""

    __slots__ = ()

    def close(self) -> None:
        """Release what is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_up_to(fd: int, limit: int) -> bytes:
    """The rest of a file, at most `limit` bytes and one more, which says that it is larger. Raises OSError."""
    data = bytearray()
    while part := os.read(fd, min(limit + 1 - len(data), 1 << 18)):  # /proc answers in pieces
        data += part
    return bytes(data)


def lines_of(data: AnyStr) -> list[AnyStr]:
    """The lines of a file that the kernel or nvc writes; the newline alone ends one.

    A name in it may have every other character at which `str.splitlines` and files in text mode begin a line.
    """
    newline = b"\n" if isinstance(data, bytes) else "\n"
    lines = data.split(newline)
    if not lines[-1]:
        lines.pop()
    return lines


def replace_file(
    name: str, data: bytes, mode: int, directory: int | None = None, like: os.stat_result | None = None,
    sync: bool = True, acl: bytes = b"", through: int | None = None,
) -> None:  # fmt: skip
    """Put a file with `data` and `mode`, whatever the umask, in the place of what `name` names, if anything.

    Readers see the old content or the new one.
    `name` is relative to the open `directory`, if one is given. `like`: the new file gets this owner and mode, with
    the access control list `acl`, as the attribute ACL has it. With `sync`, the new file and its name are on the
    disk when this returns; a name only in an open `directory`. `through`: an open directory on the same mount that
    has the new file until it is whole, in place of `directory`. Raises OSError; what was there is then as it was.
    """
    through = directory if through is None else through
    place, slash, last = name.rpartition("/")
    temporary = f"{place}{slash}.{last}.{os.getpid()}"
    try:
        try:
            fd = os.open(temporary, _WRITE, 0o600, dir_fd=through)
        except FileExistsError:  # left behind by a killed process with our number
            os.unlink(temporary, dir_fd=through)
            fd = os.open(temporary, _WRITE, 0o600, dir_fd=through)
        with closing(fd):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            if like is not None:
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(fd, like.st_uid, like.st_gid)
                mode = like.st_mode & 0o7777
            if acl:  # first: what the mode gives the group is its mask
                os.setxattr(fd, ACL, acl)
            os.fchmod(fd, mode)
            if sync:
                os.fsync(fd)
        os.rename(temporary, name, src_dir_fd=through, dst_dir_fd=directory)
    except BaseException:
        try:
            os.unlink(temporary, dir_fd=through)
        except OSError:
            pass
        raise
    if sync and directory is not None:
        os.fsync(directory)
