"""`chmod`: permission bits of files of the container itself, never of what the host lends it."""

from __future__ import annotations

import os
import stat

from nvc.base.errors import ContainerError, InputError
from nvc.kernel import O_PATH, Kernel

_MODE_MAX = 0o777


def parse_mode(text: str) -> int:
    """Permission bits in octal; no set-id bits, which would be a gift to an image. Raises InputError."""
    if not text or len(text) > 5 or not set(text) <= set("01234567") or int(text, 8) > _MODE_MAX:
        raise InputError("chmod", f"--mode={text}", "want permission bits in octal, at most 777")
    return int(text, 8)


def change_modes(kernel: Kernel, rootfs: int, mode: int, paths: list[str]) -> tuple[str, ...]:
    """Give each path the mode; warnings are returned. All or none of it.

    A missing path is a warning: images differ. Raises ContainerError.
    """
    own = {kernel.identity(rootfs).mount}
    try:
        dev = kernel.open_in_root(rootfs, "/dev", O_PATH | os.O_DIRECTORY, False)
    except OSError:
        dev = -1
    if dev >= 0:
        # Made by the runtime for this container, unless it is the host's, as with `docker run --volume /dev:/dev`.
        if os.fstat(dev).st_dev != os.stat("/dev").st_dev:
            own.add(kernel.identity(dev).mount)
        os.close(dev)
    done: list[tuple[int, int]] = []
    warnings = []
    try:
        for path in paths:
            try:
                fd = kernel.open_in_root(rootfs, path, O_PATH)
            except OSError as error:
                warnings.append(f"chmod: {path}: {(error.strerror or '').lower()}")
                continue
            old = stat.S_IMODE(os.fstat(fd).st_mode)
            if kernel.identity(fd).mount not in own and old != mode:
                os.close(fd)
                raise ContainerError("chmod", path, "is a file of the host that was mounted", "change it there")
            done.append((fd, old))
            if old != mode:
                os.chmod(f"/proc/self/fd/{fd}", mode)
    except BaseException as error:
        for fd, old in done:
            try:
                os.chmod(f"/proc/self/fd/{fd}", old)
            except OSError:
                pass
        if isinstance(error, OSError):
            raise ContainerError.of("chmod", path, error) from None
        raise
    finally:
        for fd, _ in done:
            os.close(fd)
    return tuple(warnings)
