"""What programs with graphics look for: links to device nodes, and a profile that names the visible GPUs.

A specification is made before anybody knows which of its devices a container gets. So these steps look at the
device nodes that the container has.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.errors import ContainerError
from nvc.kernel import O_PATH
from nvc.plan.proc import profile_ops
from nvc.request import clean_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel
    from nvc.plan.ops import Op, Symlink

DEV = "/dev"
#: Bits that a profile has for GPUs.
MINORS_MAX = 64
_NAME = "nvidia"


def present(kernel: Kernel, rootfs: int, links: list[Symlink]) -> list[Symlink]:
    """The `links` that lead to something; none where /dev is the host's, which must not change.

    Raises ContainerError.
    """
    if not links or not _has_its_own_dev(kernel, rootfs):
        return []
    found = []
    listed: dict[str, frozenset[str]] = {}
    for link in links:
        path = clean_path(f"{link.target.rpartition('/')[0]}/{link.text}")
        directory, _, name = path.rpartition("/")
        if directory not in listed:
            listed[directory] = _names(kernel, rootfs, directory or "/")
        if name in listed[directory]:
            found.append(link)
    return found


def _names(kernel: Kernel, rootfs: int, directory: str) -> frozenset[str]:
    """What is in a directory of the container; nothing in one that is not there. Raises ContainerError."""
    try:
        fd = kernel.open_in_root(rootfs, directory, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError as error:
        raise ContainerError.of("create-device-links", directory, error) from None
    try:
        return frozenset(os.listdir(fd))
    except OSError as error:
        raise ContainerError.of("create-device-links", directory, error) from None
    finally:
        os.close(fd)


def visible_ops(kernel: Kernel, rootfs: int) -> list[Op]:
    """The profile for the GPUs whose nodes the container has; nothing where it has none. Raises ContainerError."""
    minors = set()
    try:
        fd = kernel.open_in_root(rootfs, DEV, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in os.listdir(fd):
                number = name[len(_NAME) :]
                if not name.startswith(_NAME) or not number.isdecimal() or len(number) > 2:
                    continue
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISCHR(status.st_mode) and os.minor(status.st_rdev) == int(number) < MINORS_MAX:
                    minors.add(int(number))
        finally:
            os.close(fd)
    except OSError as error:
        raise ContainerError.of("update-application-profile", DEV, error) from None
    return profile_ops(sorted(minors)) if minors else []


def _has_its_own_dev(kernel: Kernel, rootfs: int) -> bool:
    try:
        fd = kernel.open_in_root(rootfs, DEV, O_PATH | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        return os.fstat(fd).st_dev != os.stat(DEV).st_dev
    finally:
        os.close(fd)
