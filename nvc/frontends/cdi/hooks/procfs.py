"""The container's view of /proc/driver/nvidia."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import InputError, NvcError
from nvc.discovery.devices.proc import PROC, proc_files
from nvc.discovery.host import SIMULATION
from nvc.discovery.hostroot import HostRoot
from nvc.kernel import Kernel
from nvc.plan.ops import BindProc, Op
from nvc.plan.proc import simulated_proc_ops, unmodifiable

_ENTRIES_MAX = 4096
_MAKE = "`nvc-cli sim create DIRECTORY` makes one"


def simulated_ops(kernel: Kernel, driver_root: str, entries: list[str]) -> list[Op]:
    """What makes a simulated driver's files appear, and `entries` (paths below /proc/driver/nvidia) of it.

    Raises InputError when the directory is not a simulated driver, or an entry is not one of its files.
    """
    step = "simulate-proc"
    if len(entries) > _ENTRIES_MAX:
        raise InputError(step, "--entry", f"given {len(entries)} times, at most {_ENTRIES_MAX}")
    try:
        root = HostRoot.at(kernel, driver_root)
    except NvcError as error:
        raise InputError(step, f"--driver-root={driver_root}", error.cause, error.hint) from None
    with root:
        if not root.exists(SIMULATION):
            raise InputError(step, f"--driver-root={driver_root}", "is not a simulated driver", _MAKE)
        files = tuple((file.name, unmodifiable(file.name, file.content)) for file in proc_files(root))
        directories: list[str] = []
        binds: list[Op] = []
        for entry in dict.fromkeys(entries):
            parts = entry.split("/")
            if not entry.startswith(PROC + "/") or not set(parts[1:]).isdisjoint(("", ".", "..")):
                raise InputError(step, f"--entry={entry}", f"want a path below {PROC}")
            mode = _mode(root, step, entry)
            if stat.S_ISDIR(mode):
                directories.append(entry)
            binds.append(BindProc(entry, entry, stat.S_ISDIR(mode)))
        return [*simulated_proc_ops(files, directories), *binds]


def _mode(root: HostRoot, step: str, entry: str) -> int:
    try:
        return root.stat(entry, follow=False).st_mode
    except OSError as error:
        raise InputError.of(
            step, f"--entry={entry}", error, "the simulated driver was replaced: run `nvc-cli cdi refresh`"
        ) from None


def absolute_root(path: str) -> str:
    """`path` if it can be a driver root. Raises InputError."""
    if not path.startswith("/") or "\0" in path or not _is_directory(path):
        raise InputError("simulate-proc", f"--driver-root={path}", "want the absolute path of a directory")
    return path


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False
