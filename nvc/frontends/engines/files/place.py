"""Where a file is that is changed. Its directory may be one that others can write, such as /tmp.

So no link of somebody else is followed. What comes of that is a resolved path, without any link. It is opened step
by step, so that a link which is put there meanwhile is refused.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.files import ACL, closing, replace_file
from nvc.base.rundir import belongs_to_us
from nvc.frontends.engines import EngineError

LINKS_MAX = 40  # as the kernel follows
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def resolved(path: str) -> str:
    """The path without links, as of realpath(3). Raises EngineError for a link that is not root's or ours."""
    rest, place, links = os.path.abspath(path).split("/")[::-1], "/", 0
    while rest:
        name = rest.pop()
        if name == "..":
            place = os.path.dirname(place)
        if name in ("", ".", ".."):
            continue
        step = os.path.join(place, name)
        target = _target(step)
        if not target:
            place = step
            continue
        links += 1
        if links > LINKS_MAX:
            raise EngineError("open", path, "too many links", "name the file that is meant")
        if target.startswith("/"):
            place = "/"
        rest += target.split("/")[::-1]
    return place


def _target(path: str) -> str:
    """What the last name of a path leads to if it is a link; "" if not. Raises EngineError."""
    try:
        fd = os.open(path, _LOOK)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise EngineError.of("open", path, error, "name a path that you can open") from None
    with closing(fd):
        status = os.fstat(fd)
        if not stat.S_ISLNK(status.st_mode):
            return ""
        if not belongs_to_us(status):
            raise EngineError(
                "open", path, f"a link of user {status.st_uid}", "remove it, or name the file that is meant"
            )
        return os.readlink("", dir_fd=fd)


def directory(path: str, create: bool = False) -> int:
    """The directory of a resolved path, opened to look names up; made if need be. Raises OSError."""
    fd = os.open("/", _STEP)
    for name in path.split("/")[1:-1]:
        with closing(fd) as above:
            if create:
                try:
                    os.mkdir(name, 0o755, dir_fd=above)
                except FileExistsError:
                    pass
            fd = os.open(name, _STEP, dir_fd=above)
    return fd


def opened(path: str) -> int:
    """The file at a resolved path, to be read. Raises OSError."""
    with closing(directory(path)) as fd:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(os.path.basename(path), flags, dir_fd=fd)


def replace(path: str, data: bytes, mode: int, like: str = "") -> None:
    """Replace what is at a resolved path at once, with the rights of the file `like` there, else `mode`.

    Raises OSError.
    """
    status = status_of(like) if like else None
    acl = _acl_of(like) if status is not None else b""
    name = os.path.basename(path)
    with closing(_held(path)) as fd, closing(_held(above_drop_ins(path))) as through:
        try:
            replace_file(name, data, mode, fd, status, acl=acl, through=through)
        except OSError as error:
            if error.errno != errno.EXDEV:  # a directory that is mounted
                raise
            replace_file(name, data, mode, fd, status, acl=acl)


def above_drop_ins(path: str) -> str:
    """A path as it is, or in the directory above one of drop-ins (*.d): engines read each file there."""
    directory, name = os.path.split(path)
    return os.path.join(os.path.dirname(directory) if directory.endswith(".d") else directory, name)


def _held(path: str) -> int:
    """The directory of a resolved path, opened so that it can be synchronized. Raises OSError."""
    with closing(directory(path)) as looked:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=looked)


def _acl_of(path: str) -> bytes:
    """The access control list of the file at a resolved path; b"": it has none. Raises OSError."""
    with closing(opened(path)) as fd:
        try:
            return os.getxattr(fd, ACL)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                return b""
            raise


def remove(path: str, is_directory: bool = False) -> None:
    """Remove what is at a resolved path. Raises OSError."""
    with closing(directory(path)) as fd:
        (os.rmdir if is_directory else os.unlink)(os.path.basename(path), dir_fd=fd)


def status_of(path: str) -> os.stat_result | None:
    """The status of the file at a resolved path, None where there is none. Raises OSError."""
    try:
        fd = directory(path)
    except FileNotFoundError:
        return None
    try:
        status = os.stat(os.path.basename(path), dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    finally:
        os.close(fd)
    return status if stat.S_ISREG(status.st_mode) else None
