"""The only door to the kernel beyond the standard library: one protocol, one real implementation.

`nvc.testing.RecordingKernel` is the other. Nothing outside this package imports `nvc._syscalls`.
"""

from __future__ import annotations

import posix

from nvc._syscalls import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Protocol

    class Kernel(Protocol):
        """What discovery and the executor ask of the kernel. Each raises OSError."""

        def open_in_root(self, root: int, path: str, flags: int, follow: bool = True) -> int: ...
        def pidfd_open(self, pid: int) -> int: ...
        def pidfd_send_signal(self, pidfd: int, signal: int) -> None: ...


O_PATH = 0o10000000
O_NOFOLLOW = 0o400000
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10


def _raise(code: int, path: str = "") -> NoReturn:
    raise OSError(-code, posix.strerror(-code), path)


def checked(result: int, path: str = "") -> int:
    """`result`, or the OSError that a negative errno stands for."""
    if result < 0:
        _raise(result, path)
    return result


class LinuxKernel:
    """The running kernel."""

    def open_in_root(self, root: int, path: str, flags: int, follow: bool = True) -> int:
        """Open `path` with every link and `..` confined to the directory `root` (openat2(2)).

        `flags` are open(2)'s; close-on-exec is always set. Without `follow`, a link at the end is refused
        with ELOOP, or opened itself when `flags` has O_PATH.
        """
        if not follow:
            flags |= O_NOFOLLOW
        relative = path.lstrip("/") or "."
        fd: int = lib.nvc_openat2(root, relative.encode(), flags, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
        return checked(fd, path)

    def pidfd_open(self, pid: int) -> int:
        """A descriptor that stands for `pid` even after it is reused (pidfd_open(2))."""
        return checked(lib.nvc_pidfd_open(pid), f"pid {pid}")

    def pidfd_send_signal(self, pidfd: int, signal: int) -> None:
        """Signal a process by descriptor; signal 0 only asks whether it lives."""
        checked(lib.nvc_pidfd_send_signal(pidfd, signal))


__all__ = ["ffi", "lib", "checked", "LinuxKernel", "O_PATH", "O_NOFOLLOW"]
