"""The driver's programs: always ELF files. The `nvidia-smi` on a PATH may be a wrapper script that calls an
absolute path; bound into a container it would call something that is not there."""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError
from nvc.base.files import closing
from nvc.discovery.driver.elf import read_elf
from nvc.discovery.driver.places import prefixes
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import Binary, identity_of

TABLE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("utility", ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager")),
    ("compute", ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")),
    ("utility", ("nvidia-imex", "nvidia-imex-ctl")),
    ("graphics", ("nvidia-xconfig",)),
)

#: Of a wrapper script this much is searched for the program's path, bytes.
SCRIPT_LIMIT = 64 << 10
_PATH_ENTRIES_MAX = 64


def search_directories(search_path: str) -> tuple[str, ...]:
    """The absolute directories of a PATH; empty and relative entries do not count."""
    return tuple(entry for entry in search_path.split(":") if entry.startswith("/"))[:_PATH_ENTRIES_MAX]


def find_binaries(
    root: HostRoot, search_path: str, arch: str, library_directory: str
) -> tuple[tuple[Binary, ...], tuple[str, ...]]:
    """The programs of TABLE that exist, in its order, and warnings.

    Each is looked for on the PATH, then where a wrapper found there points to, then in the `bin` beside the
    directory of the driver's libraries.
    """
    directories = search_directories(search_path)
    prefix = next(prefixes(library_directory), "")
    found = []
    warnings = []
    for kind, names in TABLE:
        for name in names:
            binary, wrapper = _find(root, [f"{entry}/{name}" for entry in directories], name, kind, arch)
            if binary is None and prefix:
                binary, _ = _find(root, [f"{prefix}/bin/{name}"], name, kind, arch)
            if binary is not None:
                found.append(binary)
            elif wrapper:
                warnings.append(f"binary {wrapper} is left out: a script that names no {name} of the driver")
    return tuple(found), tuple(warnings)


def _find(root: HostRoot, paths: list[str], name: str, kind: str, arch: str) -> tuple[Binary | None, str]:
    """The first ELF file of `paths`, else of the paths that scripts among them name; and the first one."""
    named: list[str] = []
    wrapper = ""
    for path in paths:
        binary, script = _examine(root, path, kind, arch)
        if binary is not None:
            return binary, wrapper
        if script is not None:
            wrapper = wrapper or path
            named += _paths_in(script, name)
    for path in named[:8]:
        binary, _ = _examine(root, path, kind, arch)
        if binary is not None:
            return binary, wrapper
    return None, wrapper


def _examine(root: HostRoot, path: str, kind: str, arch: str) -> tuple[Binary | None, bytes | None]:
    """The binary at `path`, or the text of the script there, or neither."""
    try:
        fd, status = root.open_regular(path)
        with closing(fd):
            if os.pread(fd, 2, 0) == b"#!":
                return None, os.pread(fd, SCRIPT_LIMIT, 0)
            if status.st_mode & 0o111 and read_elf(fd, path).is_for(arch):
                return Binary(root.real_path(fd), kind, identity_of(status)), None
    except (OSError, DetectionError) as error:
        root.note(error, path)
    return None, None


def _paths_in(script: bytes, name: str) -> list[str]:
    """Absolute paths ending in `name` among the words of a script, whatever quotes are around them."""
    text = script.decode("utf-8", "replace")
    for mark in "\"'`=;&|()$":
        text = text.replace(mark, " ")
    return [word for word in text.split() if word.startswith("/") and word.endswith("/" + name)]
