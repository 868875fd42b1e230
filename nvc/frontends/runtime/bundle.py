"""The bundle's config.json: read once through a descriptor, replaced whole or not at all."""

from __future__ import annotations

import os
import stat

from nvc.base.errors import ContainerError
from nvc.base.files import closing, read_up_to, replace_file
from nvc.base.value import Value
from nvc.request.oci import MAX_CONFIG

STEP = "read bundle"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW


class Source(Value):
    """A configuration as it was read; `path` has no links."""

    path: str
    data: bytes
    status: os.stat_result


def read_source(path: str) -> Source:
    """The file that `path` leads to. Raises ContainerError: missing, no regular file, or larger than MAX_CONFIG."""
    try:
        path = os.path.realpath(path, strict=True)
        with closing(os.open(path, _READ)) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ContainerError(STEP, path, "not a regular file")
            data = read_up_to(fd, MAX_CONFIG)
    except OSError as error:
        raise ContainerError.of(STEP, path, error, "name a bundle with --bundle, as engines do") from None
    if len(data) > MAX_CONFIG:
        raise ContainerError(STEP, path, f"larger than {MAX_CONFIG} bytes")
    return Source(path, data, status)


def replace(source: Source, data: bytes) -> None:
    """Put `data` in the file's place, same owner and mode. Raises ContainerError; the old file then stays."""
    directory, name = os.path.split(source.path)
    try:
        parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ContainerError.of("write bundle", directory, error) from None
    try:
        replace_file(name, data, 0o600, parent, like=source.status)
    except OSError as error:
        raise ContainerError.of("write bundle", source.path, error) from None
    finally:
        os.close(parent)
