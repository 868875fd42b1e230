"""Shadow libraries: files of an image that programs would load in place of the shim, such as a second libcuda.

Searched are the directories in which a loader looks: those of the image's loader cache, the well-known ones,
those of LD_LIBRARY_PATH where it is known, and CUDA's forward-compatibility directories. All of it is the image's:
names and counts are bounded, and every path is resolved inside the rootfs.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.discovery.ldcache import CACHE_LIMIT, parse_cache
from nvc.discovery.places import COMPAT, DIRECTORIES
from nvc.errors import MountError, NvcError, of_host
from nvc.kernel import O_PATH
from nvc.request import clean_path
from nvc.slices.model.slice import ShadowLibrary
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel
    from nvc.model import Identity

#: SONAMEs that there are shims for. A file counts by its name: what ldconfig finds by its SONAME has a link of it.
SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
_STEMS = ("libcuda.so", "libnvidia-ml.so")
#: Where images keep forward-compatibility libraries; `*` stands for a version.
COMPAT_PARENT = "/usr/local"
COMPAT_BELOW = ("", "/lib", "/lib.real")
DIRECTORIES_MAX = 256
NAMES_MAX = 65536
SHADOWS_MAX = 64
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ImageLibraries(Value):
    """What of an image must be covered, linked or hidden."""

    shadows: tuple[ShadowLibrary, ...]
    links: tuple[str, ...]  # directories that need a link to the private directory
    hidden: tuple[str, ...]


def find_shadow_libraries(
    kernel: Kernel,
    rootfs: int,
    libs_dir: str,
    library_path: tuple[str, ...] = (),
    known: tuple[Identity, ...] = (),
    compat: str = "",
) -> ImageLibraries:
    """The shadow libraries in the rootfs. `known` are the shims: a path where one already lies is left out.

    `compat` is the directory of forward-compatibility libraries that the container uses, "" where it uses none: the
    others are hidden.

    Raises MountError for more than SHADOWS_MAX of them: nobody has as many by accident.
    """
    ours = {(identity.device, identity.inode) for identity in known}
    seen: set[tuple[int, int]] = set()
    files: set[tuple[int, int]] = set()
    shadows: list[ShadowLibrary] = []
    links: list[str] = []
    hidden = []
    chosen = _identity(kernel, rootfs, compat) if compat else None
    for base in _compat_directories(kernel, rootfs):
        if chosen is not None and _identity(kernel, rootfs, base) == chosen:
            continue
        # All of them are seen then, lest LD_LIBRARY_PATH bring one up again.
        if sum(_has_library(kernel, rootfs, base + below, seen) for below in COMPAT_BELOW):
            hidden.append(base)
    own = [libs_dir, *(compat + below for below in COMPAT_BELOW if compat)]
    for directory in dict.fromkeys((*own, *_directories(kernel, rootfs, library_path))):
        listed = _list(kernel, rootfs, directory, seen)
        if listed is None:
            continue
        present = False
        for name in listed:
            path = f"{directory}/{name}"
            identity = _library(kernel, rootfs, path)
            if identity is None:
                continue
            present = True
            if identity in ours or identity in files:
                continue
            files.add(identity)
            shadows.append(ShadowLibrary(path, SONAMES[name.startswith(_STEMS[1])]))
        if present:
            links.append(directory)
        if len(shadows) > SHADOWS_MAX:
            raise MountError(
                "make a slice", directory, f"more than {SHADOWS_MAX} copies of libcuda in the image"
            )
    return ImageLibraries(tuple(shadows), tuple(links), tuple(hidden))


def _directories(kernel: Kernel, rootfs: int, library_path: tuple[str, ...]) -> list[str]:
    machine = os.uname().machine
    found = list(_cache_directories(kernel, rootfs))
    for item in library_path:
        path = clean_path(item)
        # CUDA's stubs are for linking only: they have no code, and programs are linked against them.
        if item.startswith("/") and path.rpartition("/")[2] != "stubs":
            found.append(path)
    found += DIRECTORIES[machine]
    if machine in COMPAT:
        found += DIRECTORIES[COMPAT[machine]]
    return found[:DIRECTORIES_MAX]


def _cache_directories(kernel: Kernel, rootfs: int) -> list[str]:
    """Directories of libcuda and libnvidia-ml in the image's loader cache."""
    try:
        fd = kernel.open_regular(rootfs, "/etc/ld.so.cache")
    except OSError:
        return []
    try:
        status = os.fstat(fd)
        if status.st_size > CACHE_LIMIT:
            return []
        entries = parse_cache(os.pread(fd, status.st_size, 0), tuple(stem.encode() for stem in _STEMS))
    except OSError as error:
        of_host(error, "read loader cache of the image", "/etc/ld.so.cache")
        return []
    except NvcError:
        return []  # what the loader cannot read names no library either
    finally:
        os.close(fd)
    return [path.rpartition("/")[0] for _, _, path in entries if path.startswith("/")]


def _compat_directories(kernel: Kernel, rootfs: int) -> list[str]:
    try:
        fd = kernel.open_in_root(rootfs, COMPAT_PARENT, _LIST)
    except OSError:
        return []
    try:
        names = sorted(os.listdir(fd))[:NAMES_MAX]
    except OSError as error:
        of_host(error, "read directory of the image", COMPAT_PARENT)
        return []
    finally:
        os.close(fd)
    return [f"{COMPAT_PARENT}/{name}/compat" for name in names if name.startswith("cuda")][:DIRECTORIES_MAX]


def _identity(kernel: Kernel, rootfs: int, directory: str) -> tuple[int, int] | None:
    """Device and inode of a directory."""
    try:
        fd = kernel.open_in_root(rootfs, directory, O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    finally:
        os.close(fd)


def _list(kernel: Kernel, rootfs: int, directory: str, seen: set[tuple[int, int]]) -> list[str] | None:
    """The names of interest in a directory that has not been seen by another name, else None."""
    try:
        fd = kernel.open_in_root(rootfs, directory, _LIST)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) in seen:
            return None
        seen.add((status.st_dev, status.st_ino))
        return sorted(name for name in os.listdir(fd)[:NAMES_MAX] if is_of_interest(name))
    except OSError as error:
        of_host(error, "read directory of the image", directory)
        return None
    finally:
        os.close(fd)


def _has_library(kernel: Kernel, rootfs: int, directory: str, seen: set[tuple[int, int]]) -> bool:
    listed = _list(kernel, rootfs, directory, seen) or ()
    return any(_library(kernel, rootfs, f"{directory}/{name}") for name in listed)


def is_of_interest(name: str) -> bool:
    """Whether a file of this name may be taken for a library that there is a shim for."""
    return any(name == stem or name.startswith(f"{stem}.") for stem in _STEMS)


def _library(kernel: Kernel, rootfs: int, path: str) -> tuple[int, int] | None:
    """Device and inode of the ELF file that `path` leads to, None where it leads to none."""
    try:
        fd = kernel.open_regular(rootfs, path)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if os.pread(fd, 4, 0) != b"\x7fELF":
            return None
    except OSError as error:
        of_host(error, "read library of the image", path)
        return None
    finally:
        os.close(fd)
    return status.st_dev, status.st_ino
