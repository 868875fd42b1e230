"""The host's side of a plan: each source is opened once, below its root, and what it is is checked on the
descriptor. From here on nobody knows a source's path."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import MountError, SourceChanged
from nvc.base.files import Closable
from nvc.kernel import O_PATH, Kernel
from nvc.model.facts import identity_of
from nvc.plan import ops

#: Of a file that is a link, a directory or something else by now.
WRONG_KIND = "not the kind of file that was found"
REINSTALL = "reinstall the driver"


class Sources(Closable):
    """The three roots that sources are in, and every descriptor opened below them."""

    __slots__ = ("kernel", "rootfs", "roots", "opened", "warnings")

    def __init__(self, kernel: Kernel, plan: ops.Plan, rootfs: int = -1) -> None:
        self.kernel = kernel
        self.rootfs = rootfs  # the container's, which is not closed here
        self.opened: list[int] = []
        self.roots: dict[str, int] = {}
        self.warnings: list[str] = []
        for kind in ("driver", "system", "device"):
            path = getattr(plan, f"{kind}_root")
            self.roots[kind] = self._keep(os.open(path, O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def _keep(self, fd: int) -> int:
        self.opened.append(fd)
        return fd

    def _open(self, root: str, path: str, follow: bool = True) -> tuple[int, os.stat_result]:
        try:
            fd = self._keep(self.kernel.open_in_root(self.roots[root], path, O_PATH, follow))
        except OSError as error:
            raise SourceChanged.of("open driver file", path, error) from None
        return fd, os.fstat(fd)

    def _driver_file(self, root: str, path: str, directory: bool, follow: bool) -> tuple[int, os.stat_result]:
        """A directory or a regular file. Raises SourceChanged, MountError."""
        fd, st = self._open(root, path, follow)
        if not (stat.S_ISDIR if directory else stat.S_ISREG)(st.st_mode):
            raise MountError("open driver file", path, WRONG_KIND, REINSTALL)
        return fd, st

    def file(self, op: ops.BindFile) -> int:
        """A regular file with the identity that discovery saw. Raises SourceChanged."""
        fd, st = self._driver_file("driver", op.source, directory=False, follow=True)
        if identity_of(st) != op.identity:
            raise SourceChanged("open driver file", op.source, "changed since it was found")
        return fd

    def host_file(self, op: ops.BindHostFile) -> int:
        """A regular file or a directory of nvc's own, on the host. Raises SourceChanged."""
        try:
            fd = self._keep(os.open(op.source, O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        except OSError as error:
            raise SourceChanged.of("open file of nvc", op.source, error) from None
        st = os.fstat(fd)
        if not (stat.S_ISDIR if op.is_directory else stat.S_ISREG)(st.st_mode):
            raise MountError("open file of nvc", op.source, WRONG_KIND, "reinstall nvc")
        if op.identity is not None and identity_of(st) != op.identity:
            raise SourceChanged("open file of nvc", op.source, "changed since it was found")
        return fd

    def inside(self, op: ops.BindInside) -> int:
        """A regular file of the container, the one that was looked at. Raises MountError."""
        try:
            fd = self._keep(self.kernel.open_in_root(self.rootfs, op.source, O_PATH))
        except OSError as error:
            raise MountError.of("open file of the container", op.source, error) from None
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode) or identity_of(st) != op.identity:
            raise MountError("open file of the container", op.source, "changed meanwhile", "start it again")
        return fd

    def socket(self, op: ops.BindSocket) -> int:
        """A socket or a service's directory, or -1: a service that has gone is no reason to fail."""
        try:
            fd, st = self._open("driver", op.source, follow=False)
        except SourceChanged as error:
            self.warnings.append(f"{op.source}: {error.cause}; left out")
            return -1
        if not (stat.S_ISDIR if op.is_directory else stat.S_ISSOCK)(st.st_mode):
            self.warnings.append(f"{op.source}: not the kind of file that was found; left out")
            return -1
        if op.is_directory and not op.writable and (st.st_uid != 0 or st.st_mode & 0o022):
            self.warnings.append(f"{op.source}: no longer a directory of root's alone; left out")
            return -1
        return fd

    def proc(self, op: ops.BindProc) -> int:
        """An entry of /proc/driver/nvidia. Raises SourceChanged."""
        return self._driver_file("system", op.source, op.is_directory, follow=False)[0]

    def device(self, op: ops.BindDevice) -> int:
        """A character device that really is major:minor, whatever its name says."""
        fd, st = self._open("device", op.source, follow=False)
        if not stat.S_ISCHR(st.st_mode) or st.st_rdev != os.makedev(op.major, op.minor):
            raise MountError(
                "invalid device node", op.source, f"is not character device {op.major}:{op.minor}",
                "remove it and run nvidia-modprobe, or use --load-kmods",
            )  # fmt: skip
        return fd

    def device_directory(self, op: ops.BindDeviceDirectory) -> int:
        """A directory of device nodes."""
        return self._driver_file("device", op.source, directory=True, follow=False)[0]

    def are_gone(self) -> bool:
        """Whether one of them was removed since it was opened. It may have other names."""
        return any(os.readlink(f"/proc/self/fd/{fd}").endswith(" (deleted)") for fd in self.opened)

    def close(self) -> None:
        """Close everything: the container's mounts keep what they need."""
        for fd in self.opened:
            os.close(fd)
        self.opened.clear()
