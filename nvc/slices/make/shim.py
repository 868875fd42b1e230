"""Finds the installed shim: PREFIX/lib/nvc/vgpu/<version>, with the link `current` to the newest version.

A version's files never change: an upgrade adds a directory, and running containers keep theirs. pip installs no
links: there `current` is a directory, and an upgrade replaces its files.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat
from errno import EINVAL

import nvc
from nvc.base.errors import InitializationError, NvcError
from nvc.base.rundir import in_user_namespace
from nvc.base.value import Value
from nvc.model.facts import Identity, identity_of

#: SONAME and file name of each.
FILES = (("libcuda.so.1", "libcuda.so"), ("libnvidia-ml.so.1", "libnvidia-ml.so"))
CURRENT = "current"
_OVERFLOW_ID = 65534


class Shim(Value):
    """One installed version of the shim."""

    directory: str
    files: tuple[tuple[str, str, Identity], ...]  # SONAME, path, identity


def directory() -> str:
    """The directory of all versions. Links stay unresolved, since a staged tree links to the sources."""
    package = nvc.__file__.rpartition("/")[0]
    return package.rpartition("/")[0].rpartition("/")[0] + "/vgpu"


def installed(base: str = "") -> Shim:
    """The version that new containers get. Raises InitializationError without one, or if others could change it."""
    base = base or directory()
    link = f"{base}/{CURRENT}"
    try:
        version = os.readlink(link)
    except OSError as error:
        if error.errno != EINVAL:
            raise _missing(link, error) from None
        version = CURRENT
    place = f"{base}/{version}"
    files = []
    for soname, name in FILES:
        path = f"{place}/{name}"
        try:
            st = os.lstat(path)
        except OSError as error:
            raise _missing(path, error) from None
        if not stat.S_ISREG(st.st_mode) or not _is_ours(st.st_uid) or st.st_mode & 0o022:
            raise InitializationError(
                "find the vGPU shim", path, "not a file that only root can change", "reinstall nvc"
            )
        files.append((soname, path, identity_of(st)))
    return Shim(place, tuple(files))


def current() -> tuple[tuple[str, str, Identity], ...]:
    """SONAME, path and identity of the shim's files by the link to the newest version, so that an upgrade leaves
    documents that name them valid. Raises InitializationError."""
    place = f"{directory()}/{CURRENT}"
    return tuple(
        (soname, f"{place}/{path.rpartition('/')[2]}", identity) for soname, path, identity in installed().files
    )


def paths() -> frozenset[str]:
    """The files of every version that is installed: containers that run may have an older one. Raises OSError."""
    base = directory()
    try:
        versions = os.listdir(base)
    except FileNotFoundError:
        return frozenset()
    return frozenset(f"{base}/{version}/{name}" for version in versions for _, name in FILES)


def _is_ours(uid: int) -> bool:
    """Whether a file belongs to root or to us; in a user namespace the host's root shows as nobody."""
    return uid in (0, os.geteuid()) or uid == _OVERFLOW_ID and in_user_namespace()


def _missing(path: str, error: OSError) -> NvcError:
    return InitializationError.of(
        "find the vGPU shim", path, error, "the installation is incomplete: reinstall nvc"
    )
