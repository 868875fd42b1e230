"""Bounded reading of engines' files. Nothing here raises for what a file holds, or for what is not there."""

from __future__ import annotations

import os
import stat

from nvc.base.fastjson import JsonError, parse
from nvc.base.files import closing, read_up_to
from nvc.base.types import Any

FILE_MAX = 16 << 20  # bytes
TEXT_MAX = 256  # characters of a name
DIRECTORY_MAX = 4096  # names of a directory that are looked at
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_bytes(path: str, limit: int = FILE_MAX) -> bytes:
    """The content of a regular file of at most `limit` bytes; nothing for any other."""
    try:
        with closing(os.open(path, _READ)) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return b""
            data = read_up_to(fd, limit)
            return data if len(data) <= limit else b""
    except (OSError, ValueError):  # ValueError: a path with a null character
        return b""


def read_json(path: str) -> Any:
    """The value of a file of JSON, None where there is none that is whole."""
    try:
        return parse(read_bytes(path), FILE_MAX)
    except (JsonError, MemoryError):
        return None


def text(value: object) -> str:
    """A string of a file as a terminal shows it; "" for anything else."""
    if type(value) is not str:
        return ""
    return "".join(c if c.isprintable() else "?" for c in value[:TEXT_MAX])


def table(value: object) -> dict[str, Any]:
    """An object of a file, empty for anything else."""
    return value if type(value) is dict else {}


def names_in(directory: str) -> list[str]:
    """The names in a directory, none where there is none. Raises OSError where it cannot be read."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                found.append(entry.name)
                if len(found) == DIRECTORY_MAX:
                    break
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a path with a null character
        pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, directory) from None
    return sorted(found)
