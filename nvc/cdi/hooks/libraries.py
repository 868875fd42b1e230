"""Which libraries of a folder the engine has put there, and what the loader is to know of them.

ldconfig would read every file of the folder again. The image's own libraries are in its cache already, though;
new are only those that were mounted: they are mounts themselves, or all that a mounted folder has.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.cdi.hooks.place import LINK, MISSING, kind_at, mount_id, mounted_names
from nvc.discovery.elf import MACHINES, read_elf
from nvc.errors import NvcError
from nvc.kernel import O_PATH
from nvc.plan.ops import LoaderEntry, Symlink
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel

_FOLDERS_MAX = 256
_NAMES_MAX = 16384
#: The applier takes 1024 entries in one program.
ENTRIES_MAX = 1000
_ARCHES = {machine: arch for arch, machine in MACHINES.items()}


class Mounted(Value):
    """What to tell the loader, and the SONAME links that lead to it."""

    entries: tuple[LoaderEntry, ...]
    links: tuple[Symlink, ...]
    driver_version: str  # of the libcuda among them, "" where there is none
    warnings: tuple[str, ...]


def mounted_libraries(
    kernel: Kernel, rootfs: int, folders: list[str], planned: frozenset[str] = frozenset()
) -> Mounted:
    """The libraries that were mounted into `folders`, paths in the container; a missing folder has none.

    `planned` are links that will be made anyway. Raises OSError only for what the host refuses.
    """
    entries: dict[tuple[str, str], LoaderEntry] = {}
    links: list[Symlink] = []
    warnings: list[str] = []
    version = ""
    for folder in list(dict.fromkeys(folders))[:_FOLDERS_MAX]:
        try:
            fd = kernel.open_in_root(rootfs, folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        except OSError as error:
            warnings.append(
                f"{folder}: {(error.strerror or '').lower()}; the loader cache gets none of its libraries"
            )
            continue
        try:
            whole = mount_id(fd) != mount_id(rootfs)
            names = os.listdir(fd) if whole else mounted_names(os.readlink(f"/proc/self/fd/{fd}"))
            # Of two files with one SONAME the later name wins, as libx.so.10 over libx.so.9.
            for name in sorted(names, key=lambda name: (len(name), name))[:_NAMES_MAX]:
                found = _examine(kernel, fd, name, whole)
                if found is None:
                    continue
                soname, arch = found
                if name.startswith("libcuda.so.") and name.count(".") > 2:
                    version = name.removeprefix("libcuda.so.")
                entry = f"{folder}/{soname}"
                if soname != name and not whole:
                    if entry in planned or kind_at(kernel, fd, soname) in (MISSING, LINK):
                        links.append(Symlink(name, entry))
                    else:
                        warnings.append(
                            f"{entry} of the image stays; the loader cache names {name} beside it"
                        )
                        entry = f"{folder}/{name}"
                elif soname != name and not _leads_to(kernel, fd, soname, name):
                    entry = f"{folder}/{name}"
                entries[soname, arch] = LoaderEntry(soname, entry, arch)
        finally:
            os.close(fd)
    if len(entries) > ENTRIES_MAX:
        warnings.append(f"{len(entries)} libraries were mounted; the loader cache gets {ENTRIES_MAX}")
    # A link that was planned for an earlier file of the same SONAME gives way.
    last = {link.target: link for link in links}
    return Mounted(tuple(entries.values())[:ENTRIES_MAX], tuple(last.values()), version, tuple(warnings))


def _examine(kernel: Kernel, folder: int, name: str, whole: bool) -> tuple[str, str] | None:
    """SONAME (or file name) and architecture of a library that was mounted; None where it is none."""
    if ".so" not in name or not name.isprintable() or not name.isascii():
        return None
    try:
        fd = kernel.open_in_root(folder, name, O_PATH, follow=False)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or not (whole or kernel.is_mount_root(fd)):
            return None
        readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(fd)
    try:
        elf = read_elf(readable, name)
    except (OSError, NvcError):
        return None
    finally:
        os.close(readable)
    soname = elf.soname or name
    arch = _ARCHES.get((elf.machine, elf.bits), "")
    bad = "/" in soname or soname in (".", "..") or not soname.isprintable() or not soname.isascii()
    return None if bad or not arch else (soname, arch)


def _leads_to(kernel: Kernel, folder: int, link: str, name: str) -> bool:
    """Whether `link` in a mounted folder, which stays as it is, leads to the file `name` beside it."""
    try:
        one = kernel.open_in_root(folder, link, O_PATH)
    except OSError:
        return False
    try:
        other = kernel.open_in_root(folder, name, O_PATH, follow=False)
    except OSError:
        os.close(one)
        return False
    first, second = os.fstat(one), os.fstat(other)
    os.close(one)
    os.close(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
