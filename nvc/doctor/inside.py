"""A running container, seen from outside by its first process. Nothing in it is believed: sizes are bounded, links
stay in its root directory, and of its variables only those that ask for GPUs are looked at."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nvc.apply.target import LOADERS, exists
from nvc.base.errors import ContainerError, InputError, NvcError
from nvc.base.files import Closable, closing
from nvc.discovery.containers.files import read_bytes
from nvc.discovery.containers.running import RunningContainer
from nvc.discovery.driver.elf import Elf, read_elf
from nvc.discovery.driver.ldcache import ARCH_FLAGS, ARCH_MASK, CACHE_LIMIT, parse_cache
from nvc.kernel import Kernel
from nvc.kernel.processes import namespace_number, open_root, program, read
from nvc.model.slices.variables import library_path
from nvc.request.environment import is_known
from nvc.request.oci import Container, read_bundle

_NODES_MAX = 512
_ENVIRONMENT_MAX = 8 << 20  # bytes
#: Where loaders look before they look into a directory itself.
_PREFERRED = (
    "glibc-hwcaps/x86-64-v4/", "glibc-hwcaps/x86-64-v3/", "glibc-hwcaps/x86-64-v2/", "tls/", "haswell/",
    "x86_64/", "",
)  # fmt: skip
_MACHINE = os.uname().machine
_MULTIARCH = f"{_MACHINE}-linux-gnu"
#: What the tokens of a directory can stand for: the loader may be that of any distribution.
_TOKENS = {"LIB": ("lib64", f"lib/{_MULTIARCH}", "lib"), "PLATFORM": (_MACHINE, "haswell", "xeon_phi")}
#: Where loaders look last of all.
DIRECTORIES = (f"/lib/{_MULTIARCH}", f"/usr/lib/{_MULTIARCH}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")


@dataclass(frozen=True)
class Node:
    """A character device below the container's /dev."""

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True)
class File:
    """A library as the loader of the container would find it."""

    path: str  # in the container, links resolved
    device: int
    inode: int
    elf: Elf | None  # None: it is no ELF file

    @property
    def version(self) -> str:
        """What its name says."""
        return self.path.rpartition(".so.")[2]


class Inside(Closable):
    """What is in one container; `close` it when done. Raises ContainerError for a process that is closed to us."""

    def __init__(self, kernel: Kernel, found: RunningContainer) -> None:
        self.kernel = kernel
        self.found = found
        self.pid = found.pid
        try:
            self.root = open_root(found.pid)
        except OSError as error:
            hint = "" if isinstance(error, TimeoutError) else "run as root"
            raise ContainerError.of("look at container", f"pid {found.pid}", error, hint) from None

    def close(self) -> None:
        """Release what is held open."""
        os.close(self.root)

    @property
    def shares_mounts(self) -> bool:
        """Whether it has the host's mounts: it is then no container."""
        return namespace_number(self.pid, "mnt") == os.stat("/proc/self/ns/mnt").st_ino

    @property
    def name(self) -> str:
        """What its first process calls itself."""
        text = read_bytes(f"/proc/{self.pid}/comm").decode("utf-8", "replace").strip()
        return "".join(c if c.isprintable() else "?" for c in text)

    @cached_property
    def bundle(self) -> tuple[Container | None, dict[str, Any]]:
        """The facts of its bundle, and all of it; nothing where it is not known or makes no sense."""
        try:
            return read_bundle(self.found.bundle) if self.found.bundle else (None, {})
        except ContainerError:
            return None, {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which it asks for GPUs, of the bundle, else of its first process. Others stay here."""
        container = self.bundle[0]
        given = container.environment if container is not None else self._of_process()
        return {name: value for name, value in given.items() if is_known(name) or name == "LD_LIBRARY_PATH"}

    def _of_process(self) -> dict[str, str]:
        data = read(self.pid, "environ", _ENVIRONMENT_MAX).decode("utf-8", "replace")
        items = (item.partition("=") for item in data.split("\0"))
        return {name: value for name, equals, value in items if equals}

    def nodes(self) -> dict[str, Node]:
        """The nodes of NVIDIA below its /dev, by path."""
        found: dict[str, Node] = {}
        for directory in ("/dev", "/dev/nvidia-caps"):
            try:
                fd = self.kernel.open_in_root(self.root, directory, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue
            with closing(fd):
                with os.scandir(fd) as entries:
                    names = sorted(entry.name for entry, _ in zip(entries, range(4096)))
                for name in [name for name in names if name.startswith("nvidia")][:_NODES_MAX]:
                    it, path = os.stat(name, dir_fd=fd, follow_symlinks=False), f"{directory}/{name}"
                    if stat.S_ISCHR(it.st_mode):
                        number = os.major(it.st_rdev), os.minor(it.st_rdev)
                        found[path] = Node(path, *number, it.st_mode, it.st_uid, it.st_gid)
        return found

    @cached_property
    def cache(self) -> list[tuple[str, str]] | None:
        """Names and paths of its loader cache for this machine, None where it has none.

        Raises OSError, DetectionError.
        """
        try:
            fd = self.kernel.open_regular(self.root, "/etc/ld.so.cache")
        except FileNotFoundError:
            return None
        with closing(fd):
            size = min(os.fstat(fd).st_size, CACHE_LIMIT + 1)
            entries = parse_cache(os.pread(fd, size, 0), (b"libcuda.so", b"libnvidia-ml.so"))
        wanted = ARCH_FLAGS.get(_MACHINE)
        return [(name, path) for flags, name, path in entries if flags & ARCH_MASK == wanted]

    @property
    def musl(self) -> bool:
        """Whether its C library is musl: the driver's libraries are made for glibc."""
        glibc, musl = LOADERS[_MACHINE]
        return exists(self.kernel, self.root, musl) and not exists(self.kernel, self.root, glibc)

    def library_path(self) -> tuple[str, ...]:
        """The directories of its LD_LIBRARY_PATH, with what tokens can stand for; none where there are too many."""
        value = self.environment.get("LD_LIBRARY_PATH", "")
        try:
            path = program(self.pid)
        except OSError:
            path = ""  # it has ended
        try:
            found = library_path({"LD_LIBRARY_PATH": value, "PATH": os.path.dirname(path)})
        except InputError:
            return ()
        for token, values in _TOKENS.items():
            for text in (f"${{{token}}}", f"${token}"):
                found = tuple(
                    place
                    for one in found
                    for place in ([one.replace(text, value) for value in values] if text in one else [one])
                )
        return tuple(dict.fromkeys(found))

    def loaded(self, soname: str) -> tuple[File | None, str]:
        """What the loader would load for `soname`, and what leads it there."""
        for directory in self.library_path():
            for below in _PREFERRED:
                file = self.file(f"{directory}/{below}{soname}")
                if file is not None and file.elf is not None:
                    return file, f"LD_LIBRARY_PATH has {directory}"
        try:
            listed = [path for name, path in self.cache or () if name == soname]
        except (OSError, NvcError):
            listed = []
        places = [(path, f"the loader cache names {path}") for path in listed]
        places += [(f"{directory}/{soname}", f"it is in {directory}") for directory in DIRECTORIES]
        for path, how in places:
            file = self.file(path)
            if file is not None:
                return file, how
        return None, ""

    def file(self, path: str) -> File | None:
        """The regular file at `path`, None where there is none. It is named in the directory of a link to it."""
        try:
            with closing(self.kernel.open_regular(self.root, path)) as fd:
                status, name = os.fstat(fd), os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
                real = f"{os.path.dirname(path)}/{name}" if name else path
                try:
                    return File(real, status.st_dev, status.st_ino, read_elf(fd, path))
                except NvcError:
                    return File(real, status.st_dev, status.st_ino, None)
        except OSError:
            return None
