"""What checks read: each fact is gathered once, when the first check asks for it, and nothing is changed."""

from __future__ import annotations

import os
import time

from nvc import config as configuration
from nvc.config import Config, ConfigError
from nvc.discovery.host import Host
from nvc.discovery.nodes import nvidia_major
from nvc.discovery.proc import char_majors, kernel_version, proc_gpus
from nvc.doctor import Blocked
from nvc.errors import NvcError
from nvc.request import place
from nvc.rundir import SYSTEM, in_user_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.discovery.hostroot import HostRoot
    from nvc.discovery.proc import ProcGpu
    from nvc.doctor.cluster import Node
    from nvc.doctor.resolve import RunningContainer
    from nvc.kernel import Kernel
    from nvc.model import HostFacts
    from nvc.request import DriverOptions
    from nvc.slices.store.status import SliceStatus

#: The largest file of other programs that is read, bytes.
FILE_LIMIT = 4 << 20
#: In place of the runtime directory, where a parsed configuration would be kept: nothing is to be changed.
NOWHERE = "/dev/null"


class Context:
    """What checks read of the host, through `kernel`. `close` it when done.

    The configuration names the driver root where the caller did not: `root` and `ldcache` are the caller's or "".
    """

    def __init__(
        self, kernel: Kernel, options: DriverOptions, root: str = "", ldcache: str = "", programs: str = ""
    ) -> None:
        self.kernel = kernel
        self.nvc_cli = (
            f"nvc-cli --root {root}" if root else "nvc-cli"
        )  # with the same driver root, in commands
        self.programs = programs  # the directory of this installation's programs, "" where there is none
        self.container: RunningContainer | None = None
        self.node: Node | None = None  # of Kubernetes
        self.config = Config()
        self.config_error: ConfigError | None = None
        try:
            self.config = configuration.load(directory=NOWHERE)
            if not root:
                root, ldcache = place(root, ldcache, (self.config.root, self.config.ldcache))
                options = options.replace(root=root, ldcache=ldcache)
        except ConfigError as error:
            self.config_error = error
        self.options = options.replace(inventory=False, load_kmods=False)
        self._kept: dict[str, object] = {}
        self._host: Host | None = None

    def close(self) -> None:
        """Release what is held open."""
        if self._host is not None:
            self._host.close()

    @property
    def root(self) -> str:
        """The driver root."""
        return str(self.options.root)

    def path(self, inside: str) -> str:
        """The path on the host of something in the driver root."""
        return inside if self.root == "/" else str(self.root).rstrip("/") + inside

    @property
    def host(self) -> Host:
        """The driver root and where /proc, /sys and /dev are. Raises Blocked where it cannot be opened."""
        if self._host is None:
            try:
                self._host = Host.open(self.kernel, self.options)
            except NvcError:
                raise Blocked("driver.root") from None
        return self._host

    @property
    def module(self) -> str:
        """Version of the loaded kernel module. Raises Blocked where there is none."""
        version = kernel_version(self.host.system)
        if not version:
            raise Blocked("driver.module")
        return version

    @property
    def majors(self) -> dict[str, int]:
        """Majors of character devices by name."""
        return char_majors(self.host.system.read_optional("/proc/devices") or b"")

    @property
    def major(self) -> int:
        """The major number of GPUs and control nodes; NVIDIA's own where the kernel names none."""
        return nvidia_major(self.majors)

    @property
    def gpus(self) -> tuple[ProcGpu, ...]:
        """GPUs that the kernel module has claimed. Raises DetectionError."""
        return proc_gpus(self.host.system) or ()

    def asked(self) -> tuple[HostFacts | None, NvcError | None, float]:
        """What discovery finds, or why it finds nothing, and the seconds that took; never from the inventory."""
        if "facts" not in self._kept:
            from nvc.discovery import discover

            begin = time.monotonic()
            facts: HostFacts | None = None
            error: NvcError | None = None
            try:
                facts = discover(self.kernel, self.options)
            except NvcError as raised:
                error = raised
            self._kept["facts"] = facts, error, time.monotonic() - begin
        return self._kept["facts"]  # type: ignore[return-value]

    @property
    def facts(self) -> HostFacts:
        """What discovery finds. Raises Blocked."""
        facts, _, _ = self.asked()
        if facts is None:
            raise Blocked("driver.nvml")
        return facts

    @property
    def runtime_directory(self) -> str:
        """Where nvc keeps what lives until the next boot, there or not; root's, unless this user has one."""
        own = f"/run/user/{os.geteuid()}/nvc"
        if os.geteuid() == 0 and not in_user_namespace() or not os.path.isdir(own):
            return SYSTEM
        return own

    def slices(self) -> tuple[tuple[SliceStatus, ...], tuple[str, ...]]:
        """Every slice, and warnings about entries that cannot be read."""
        if "slices" not in self._kept:
            from nvc.slices.store.status import statuses

            try:
                os.listdir(f"{self.runtime_directory}/vgpu")  # whoever may not look knows nothing of slices
                self._kept["slices"] = statuses(self.kernel, repair=False)
            except FileNotFoundError:
                self._kept["slices"] = (), ()
        return self._kept["slices"]  # type: ignore[return-value]


def read_file(path: str, limit: int = FILE_LIMIT) -> bytes | None:
    """The beginning of a file, None where there is none. Raises OSError for any other reason."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        parts = []
        while limit > 0 and (part := os.read(fd, min(limit, 1 << 16))):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def read_text(path: str, limit: int = FILE_LIMIT) -> str:
    """The beginning of a file as text, without blanks around it; "" where there is none or it cannot be read."""
    try:
        return (read_file(path, limit) or b"").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def link_of(root: HostRoot, path: str) -> str:
    """What a path in a root leads to, without links; "" where it leads nowhere."""
    try:
        fd = root.open(path)
    except OSError:
        return ""
    try:
        return root.real_path(fd)
    except (OSError, NvcError):
        return ""
    finally:
        os.close(fd)
