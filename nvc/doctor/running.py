"""Running containers that their engine could not start again, and slices for which there is no room."""

from __future__ import annotations

import os

from nvc.doctor import AS_ROOT, Check, failed, ok, unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.doctor import Finding
    from nvc.doctor.context import Context

#: What a slice takes in the runtime directory, with some for a start beside it: bytes, and files.
ROOM, FILES = 64 << 10, 16


def read_proc(path: str) -> bytes:
    """The content of a file of /proc; nothing where its process has ended."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def room(context: Context) -> Iterator[Finding]:
    """Whether there is room for another slice."""
    path = context.runtime_directory
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return
    except OSError as error:
        yield unknown(f"{path}: {(error.strerror or '').lower()}", advice=AS_ROOT)
        return
    free = found.f_bavail * found.f_frsize
    if free < ROOM or found.f_files and found.f_favail < FILES:
        what = f"{free >> 10} KiB" if free < ROOM else f"room for {found.f_favail} files"
        yield failed(
            f"{path} is full: {what} is free, and a slice takes {ROOM >> 10} KiB and {FILES} files",
            "containers and programs with a slice do not start; those that run go on",
            commands=(f"df -h {path}", f"du -x -d 2 {path}"),
            advice="remove what others have put there, or mount /run larger: mount -o remount,size=20% /run",
        )
    else:
        yield ok(f"{path} has room: {free >> 20} MiB")


CHECKS = (
    Check("vgpu.room", "whether there is room for another slice", room),
)
