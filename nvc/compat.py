"""CUDA forward-compatibility libraries that an image brings along (/usr/local/cuda/compat).

They are never mounted: binding one part of a container onto another is how CVE-2024-0132 and CVE-2025-23359
came about. The loader cache names them before the driver's libraries, which is what makes them found.
"""

from __future__ import annotations

import os
import stat

from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel

DIRECTORY = "/usr/local/cuda/compat"
_ENTRIES_MAX = 256


class CompatLibrary(Value):
    """A library of the image that may stand in for the driver's."""

    soname: str
    path: str  # in the container


def compat_libraries(kernel: Kernel, rootfs: int, driver_version: str) -> tuple[CompatLibrary, ...]:
    """The image's compat libraries, if they are of a newer major version than the driver; else none.

    Everything read here is the image's: names and sizes are bounded, links stay in the rootfs, and what cannot
    be read does not count.
    """
    try:
        directory = kernel.open_in_root(rootfs, DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        names = sorted(os.listdir(directory))[:_ENTRIES_MAX]
    finally:
        os.close(directory)
    if not any(_newer(name, driver_version) for name in names if name.startswith("libcuda.so.")):
        return ()
    found = []
    for name in names:
        if not name.startswith("lib") or not _newer(name, driver_version):
            continue
        soname = _soname(kernel, rootfs, f"{DIRECTORY}/{name}")
        if soname:
            found.append(CompatLibrary(soname, f"{DIRECTORY}/{name}"))
    return tuple(found)


def _newer(name: str, driver_version: str) -> bool:
    """Whether `name` is lib….so.MAJOR.MINOR… with a major above the driver's."""
    _, separator, version = name.partition(".so.")
    major, dot, _ = version.partition(".")
    if not separator or not dot or not major.isascii() or not major.isdigit() or len(major) > 6:
        return False
    return int(major) > int(driver_version.split(".")[0])


def _soname(kernel: Kernel, rootfs: int, path: str) -> str:
    from nvc.discovery.elf import read_elf
    from nvc.errors import NvcError

    try:
        fd = kernel.open_in_root(rootfs, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return read_elf(fd).soname
    except (OSError, NvcError):
        return ""
    finally:
        os.close(fd)
