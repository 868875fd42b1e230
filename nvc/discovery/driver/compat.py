"""CUDA forward-compatibility libraries that an image brings along (/usr/local/cuda/compat).

They stay where they are: mounting one part of a container onto another by its path is how CVE-2024-0132 and
CVE-2025-23359 came about. The loader cache names them before the driver's libraries, which is what makes them
found. In a slice the shim lies over their libcuda, which is bound, by a descriptor, to where the shim looks for
the real one.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.base.errors import of_host
from nvc.base.value import Value
from nvc.kernel import Kernel, ffi, lib
from nvc.model.facts import Identity

DIRECTORY = "/usr/local/cuda/compat"
_ENTRIES_MAX = 256
_NONE = Identity(0, 0, 0, 0)


def _names(directory: int) -> list[str]:
    """The first names of a directory, sorted. A hostile one may have millions: it is not read to its end."""
    names: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if len(names) == _ENTRIES_MAX:
                break
            names.append(entry.name)
    return sorted(names)


class CompatLibrary(Value):
    """A library of the image that may stand in for the driver's."""

    soname: str
    path: str  # in the container
    identity: Identity = _NONE


def compat_libraries(
    kernel: Kernel,
    rootfs: int,
    driver_version: str,
    directory: str = DIRECTORY,
    cuda_version: str = "",
    shims: tuple[Identity, ...] = (),
) -> tuple[CompatLibrary, ...]:
    """The image's compat libraries, if they are for this driver; else none. `cuda_version` is the driver's.

    Where one of `shims` lies over libcuda, an earlier run has found that they are.

    The newest libcuda says itself which drivers it is for, in a note; one without that must be of a newer major
    version than the driver. Everything read here is the image's: names and sizes are bounded, links stay in the
    rootfs, and what cannot be read does not count.
    """
    try:
        fd = kernel.open_in_root(rootfs, directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        names = _names(fd)
    except OSError as error:
        of_host(error, "read directory of the image", directory)
        return ()
    finally:
        os.close(fd)
    version = max((_version(name) for name in names if name.startswith("libcuda.so.")), default=())
    if len(version) < 2:
        return ()
    suffixed = [name for name in names if name.startswith("lib") and _version(name) == version]
    main = next(name for name in suffixed if name.startswith("libcuda.so."))
    looked_at = _look(kernel, rootfs, f"{directory}/{main}")
    if looked_at is None:
        return ()
    if looked_at[2] not in shims and not _is_for(driver_version, cuda_version, main, looked_at[1]):
        return ()
    found = []
    for name in suffixed:
        path = f"{directory}/{name}"
        looked_at = _look(kernel, rootfs, path)
        if looked_at is not None and looked_at[0]:
            found.append(CompatLibrary(looked_at[0], path, looked_at[2]))
    return tuple(found)


def _version(name: str) -> tuple[int, ...]:
    """The numbers behind `.so.` in a file name; () where there are none."""
    _, _, text = name.partition(".so.")
    return _numbers(text)


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        return ()
    return tuple(int(part) for part in parts)


def _is_for(driver_version: str, cuda_version: str, main: str, note: bytes | None) -> bool:
    """What native/core/steps/compat.c says of the libcuda of the name `main`, as it does for nvc-cdi-hook."""
    texts = (main.partition(".so.")[2], driver_version, cuda_version)
    version, driver, cuda = (text.encode("utf-8", "surrogateescape") for text in texts)
    suits = lib.nvc_steps_suits(version, ffi.NULL if note is None else note, len(note or b""), driver, cuda)
    if suits < 0:
        raise MemoryError
    return bool(suits)


def _look(kernel: Kernel, rootfs: int, path: str) -> tuple[str, bytes | None, Identity] | None:
    """SONAME, note and identity of a library; None where it is none."""
    from nvc.base.errors import DetectionError
    from nvc.discovery.driver.elf import forward_compatibility, read_elf

    try:
        fd = kernel.open_regular(rootfs, path)
    except OSError:
        return None
    try:
        st = os.fstat(fd)
        elf = read_elf(fd)
        identity = Identity(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns)
        return elf.soname, forward_compatibility(fd, elf), identity
    except OSError as error:
        of_host(error, "read library of the image", path)
        return None
    except DetectionError:
        return None
    finally:
        os.close(fd)
