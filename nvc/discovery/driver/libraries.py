"""Which files are the driver's libraries: those whose name, links resolved, ends with the driver's version.

Where a library of library_table.py lies is asked of the loader cache first, then of the directory that holds
libcuda, then of well-known ones. What else those directories have of this version is the driver's, too.
"""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.discovery.driver.elf import Elf, read_elf
from nvc.discovery.driver.ldcache import ARCH_FLAGS, ARCH_MASK, CACHE_LIMIT, TYPE_MASK, TYPES, parse_cache
from nvc.discovery.driver.library_table import NOT, ROWS, DriverLibrary
from nvc.discovery.driver.places import DIRECTORIES
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import OTHER, Identity, Library, identity_of

_PREFIXES = tuple(name.encode() + b".so" for name in ROWS)

_WARNINGS_MAX = 32
#: Entries of a directory that is looked through for what has no row: a desktop's has 10,000.
_ENTRIES_MAX = 1 << 17
#: Of the driver's version, but for the X server instead of programs: modules.py.
_MODULES = ("libglxserver_nvidia",)


class FoundLibraries(Value):
    """The libraries of one architecture and what the search for them rested on."""

    libraries: tuple[Library, ...]
    directory: str  # of libcuda, links resolved; "" when there is none
    warnings: tuple[str, ...]
    shims: tuple[Library, ...] = ()  # those that are no library of the driver, but a slice's shim


def read_cache(root: HostRoot, path: str) -> tuple[list[tuple[int, str, str]], tuple[str, ...]]:
    """The entries of the driver root's loader cache that bear a driver library's name, and warnings.

    A root without a cache has none (NixOS, musl); one that cannot be read or parsed is a warning, since the
    directories may still tell.
    """
    try:
        fd, status = root.open_regular(path)
        with closing(fd):
            data = os.pread(fd, min(status.st_size, CACHE_LIMIT + 1), 0)
        return parse_cache(data, _PREFIXES), ()
    except FileNotFoundError:
        return [], ()
    except (OSError, DetectionError) as error:
        root.note(error, path)
        return [], (f"loader cache {path} is not used: {_why(error)}",)


def _why(error: OSError | DetectionError) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error.cause)


def find_libraries(
    root: HostRoot, entries: list[tuple[int, str, str]], arch: str, version: str, hints: tuple[str, ...] = ()
) -> FoundLibraries:
    """The driver's libraries for `arch`, one of each name at most, in the order of the table.

    `entries` are the loader cache's; `hints` are directories to search before the well-known ones. What
    cannot be read is left out with a warning.
    """
    return _Search(root, arch, version).run(entries, hints)


class _Search:
    """One search; files are looked at once however many names lead to them."""

    def __init__(self, root: HostRoot, arch: str, version: str) -> None:
        self.root = root
        self.arch = arch
        self.suffix = f".so.{version}"
        self.warnings: list[str] = []
        self.files: dict[str, Library | None] = {}  # by path as looked up
        self.shims: set[str] = set()  # by path
        self.plain_tls: set[str] = set()  # variants of libnvidia-tls without the ABI note
        self.candidates: dict[str, list[Library]] = {}  # by name, in order of preference

    def run(self, entries: list[tuple[int, str, str]], hints: tuple[str, ...]) -> FoundLibraries:
        wanted = ARCH_FLAGS[self.arch]
        for flags, name, path in entries:
            if flags & ARCH_MASK == wanted and flags & TYPE_MASK in TYPES:
                self.consider(name.partition(".so")[0], path, listed=True)
        directory = self.directory()
        if not directory:
            directory = self.search_directories((*hints, *DIRECTORIES[self.arch]))
        if directory:
            self.complete(directory)
            if not entries:  # the loader cache knows every directory; without one, a driver's may be several
                self.complete_from((*hints, *DIRECTORIES[self.arch]))
        chosen = [self.choose(name, directory) for name in ROWS]
        known = [library for library in chosen if library]
        found = (*known, *self.others(directory, known)) if directory else tuple(known)
        shims = tuple(library for library in found if library.path in self.shims)
        return FoundLibraries(found, directory, tuple(self.warnings[:_WARNINGS_MAX]), shims)

    def directory(self) -> str:
        """Where the loader would take libcuda from; or NVML, where there is no libcuda."""
        for name in ("libcuda", "libnvidia-ml"):
            for library in self.candidates.get(name, ()):
                return os.path.dirname(library.path)
        return ""

    def search_directories(self, directories: tuple[str, ...]) -> str:
        for directory in directories:
            for name in ("libcuda", "libnvidia-ml"):
                for suffix in (self.suffix, ".so.1"):
                    if self.consider(name, f"{directory}/{name}{suffix}"):
                        return self.directory()
        return ""

    def complete(self, directory: str) -> None:
        """Adds what lies beside libcuda: the cache knows neither `vdpau` nor what came after ldconfig."""
        for name in ROWS:
            known = self.candidates.get(name, ())
            if any(os.path.dirname(library.path) == directory for library in known):
                continue
            if not self.consider(name, f"{directory}/{self.file(name)}") and not known:
                self.consider(name, f"{directory}/vdpau/{name}{self.suffix}")
                if name == "libnvidia-tls":
                    self.consider(name, f"{directory}/tls/{name}{self.suffix}")

    def complete_from(self, directories: tuple[str, ...]) -> None:
        """Adds what has not been found yet from the first directory that has it."""
        for name in ROWS:
            if (ROWS[name].anywhere or not ROWS[name].abi) and not self.candidates.get(name):
                any(self.consider(name, f"{directory}/{self.file(name)}") for directory in directories)

    def file(self, name: str) -> str:
        return f"{name}.so.{ROWS[name].abi}" if ROWS[name].abi else name + self.suffix

    def others(self, directory: str, known: list[Library]) -> list[Library]:
        """Libraries of the driver's version that have no row, in the directories of those that have one."""
        places = [directory, f"{directory}/vdpau", *(os.path.dirname(library.path) for library in known)]
        found: dict[str, Library] = {}
        for place in dict.fromkeys(places):
            try:
                names = [name for name, _ in self.root.entries(place, _ENTRIES_MAX) if name.endswith(self.suffix)]
            except DetectionError as error:
                self.warnings.append(f"libraries in {place} may be left out: {error.cause}")
                continue
            for name in names:
                stem = name[: -len(self.suffix)]
                path = f"{place}/{name}"
                if stem in ROWS or stem in found or stem in _MODULES or path in self.files:
                    continue
                library = self.files[path] = self.examine(stem, path, listed=False)
                if library is not None:
                    found[stem] = library
        return list(found.values())

    def choose(self, name: str, directory: str) -> Library | None:
        """Files beside libcuda win, then the order in the cache: a driver may be listed twice."""
        known = self.candidates.get(name, ())
        if name == "libnvidia-tls":  # older drivers have two; the one for threads of today carries a note
            known = [library for library in known if library.path not in self.plain_tls] or known
        for library in known:
            if os.path.dirname(library.path) == directory:
                return library
        return known[0] if known and (ROWS[name].anywhere or not ROWS[name].abi) else None

    def consider(self, name: str, path: str, listed: bool = False) -> bool:
        """Adds the file at `path` as a candidate for `name`. Whether it was one.

        `listed`: the loader cache names it, so its absence is worth a warning.
        """
        if name not in ROWS:
            return False
        if path in self.files:
            library = self.files[path]
        else:
            library = self.files[path] = self.examine(name, path, listed)
        if library is None or not os.path.basename(library.path).startswith(name + ".so"):
            return False
        known = self.candidates.setdefault(name, [])
        if all(other.path != library.path for other in known):
            known.append(library)
        return True

    def examine(self, name: str, path: str, listed: bool) -> Library | None:
        if not path.startswith("/") or not path.isprintable():
            return None
        try:
            fd, status = self.root.open_regular(path)
            with closing(fd):
                if status.st_size == 0 and not listed:  # a mount of an earlier start was there
                    return None
                real = self.root.real_path(fd)
                if not real.endswith(self.suffix) and not (name in ROWS and ROWS[name].abi):
                    return None  # of another driver, or not NVIDIA's at all
                elf = read_elf(fd, real)
        except FileNotFoundError:
            if listed:
                self.warnings.append(f"stale entry in the loader cache: {path}")
            return None
        except (OSError, DetectionError) as error:
            self.root.note(error, path)
            self.warnings.append(f"library {path} is left out: {_why(error)}")
            return None
        return self.library(name, real, elf, identity_of(status))

    def library(self, name: str, path: str, elf: Elf, identity: Identity) -> Library | None:
        if not elf.is_for(self.arch):
            return None
        if elf.layouts:
            self.shims.add(path)
        if name == "libnvidia-tls" and elf.linux_abi != (2, 3, 99):
            self.plain_tls.add(path)
        soname = elf.soname or os.path.basename(path)
        if "/" in soname or not soname.isprintable() or not soname.isascii():
            self.warnings.append(f"library {path} is left out: its SONAME is not a file name")
            return None
        row = ROWS.get(name) or DriverLibrary(name, OTHER, NOT)
        link = f"{name}.so"
        wanted = soname != link and (row.dev_link or self.root.exists(f"{os.path.dirname(path)}/{link}"))
        return Library(path, soname, row.kind, self.arch, row.counted, identity, link if wanted else "")
