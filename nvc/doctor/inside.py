"""A running container, seen from outside by its first process. Nothing in it is believed: sizes are bounded, links
stay in its root directory, and of its variables only those that ask for GPUs are looked at."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nvc.apply.target import LOADERS
from nvc.base.errors import ContainerError, InputError, NvcError
from nvc.base.files import Closable, closing
from nvc.discovery.containers.files import read_bytes
from nvc.discovery.containers.running import RunningContainer
from nvc.discovery.devices.nodes import CAPABILITIES
from nvc.discovery.driver.elf import Elf, read_elf
from nvc.discovery.driver.ldcache import ARCH_FLAGS, ARCH_MASK
from nvc.discovery.driver.libraries import read_cache
from nvc.discovery.hostroot import HostRoot
from nvc.kernel import Kernel
from nvc.kernel.processes import namespace_number, open_root, program, read
from nvc.model.slices.variables import library_path
from nvc.request.environment import is_known
from nvc.request.oci import Container, read_bundle

_ENVIRONMENT_MAX = 8 << 20  # bytes
_MACHINE = os.uname().machine
_MULTIARCH = f"{_MACHINE}-linux-gnu"
#: Where loaders look last of all.
DIRECTORIES = (f"/lib/{_MULTIARCH}", f"/usr/lib/{_MULTIARCH}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")


@dataclass(frozen=True)
class Node:
    """A character device below the container's /dev."""

    path: str
    major: int
    minor: int
    status: os.stat_result


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
        self.found = found
        self.pid = found.pid
        try:
            self.root = HostRoot(kernel, open_root(found.pid), f"pid {found.pid}")
        except OSError as error:
            hint = "" if isinstance(error, TimeoutError) else "run as root"
            raise ContainerError.of("look at container", f"pid {found.pid}", error, hint) from None

    def close(self) -> None:
        """Release what is held open."""
        self.root.close()

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
        for directory in ("/dev", CAPABILITIES):
            for name, _ in self.root.entries(directory):
                path = f"{directory}/{name}"
                status = self.root.character(path) if name.startswith("nvidia") else None
                if status is not None:
                    found[path] = Node(path, os.major(status.st_rdev), os.minor(status.st_rdev), status)
        return found

    @property
    def musl(self) -> bool:
        """Whether its C library is musl: the driver's libraries are made for glibc."""
        glibc, musl = LOADERS[_MACHINE]
        return self.root.exists(musl) and not self.root.exists(glibc)

    def library_path(self) -> tuple[str, ...]:
        """The directories of its LD_LIBRARY_PATH; none where there are too many."""
        value = self.environment.get("LD_LIBRARY_PATH", "")
        try:
            directory = os.path.dirname(program(self.pid))
        except OSError:
            directory = ""  # it has ended
        try:
            return library_path({"LD_LIBRARY_PATH": value, "PATH": directory})
        except InputError:
            return ()

    def loaded(self, soname: str) -> tuple[File | None, str]:
        """What the loader would load for `soname`, and what leads it there."""
        entries, _ = read_cache(self.root, "/etc/ld.so.cache")
        own = [entry for entry in entries if entry[0] & ARCH_MASK == ARCH_FLAGS.get(_MACHINE)]
        places = [(f"{place}/{soname}", f"LD_LIBRARY_PATH has {place}") for place in self.library_path()]
        places += [(path, f"the loader cache names {path}") for _, name, path in own if name == soname]
        places += [(f"{place}/{soname}", f"it is in {place}") for place in DIRECTORIES]
        for path, how in places:
            file = self.file(path)
            if file is not None:
                return file, how
        return None, ""

    def file(self, path: str) -> File | None:
        """The regular file at `path`, None where there is none. It is named in the directory of a link to it."""
        try:
            fd, status = self.root.open_regular(path)
        except (OSError, NvcError):
            return None
        with closing(fd):
            name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
            try:
                elf = read_elf(fd, path)
            except NvcError:
                elf = None
        return File(f"{os.path.dirname(path)}/{name}", status.st_dev, status.st_ino, elf)
