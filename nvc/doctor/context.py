"""What checks read: each fact is gathered once, when the first check asks for it, and nothing is changed."""

from __future__ import annotations

import os
import time
from functools import cached_property
from typing import TYPE_CHECKING

from nvc.base.errors import NvcError
from nvc.base.files import Closable
from nvc.base.rundir import SYSTEM, in_user_namespace
from nvc.discovery import discover
from nvc.discovery.containers.files import FILE_MAX, read_bytes
from nvc.discovery.devices.nodes import nvidia_major
from nvc.discovery.devices.proc import ProcGpu, char_majors, kernel_version, proc_gpus
from nvc.discovery.host import Host
from nvc.doctor import Blocked
from nvc.doctor.inside import Inside
from nvc.model.facts import HostFacts
from nvc.model.request import DriverOptions, place
from nvc.request import config as configuration
from nvc.request.config import Config, ConfigError
from nvc.slices.store.status import SliceStatus, statuses

if TYPE_CHECKING:
    from nvc.discovery.containers.running import RunningContainer
    from nvc.doctor.kubernetes.cluster import Node
    from nvc.kernel import Kernel

#: In place of the runtime directory, where a parsed configuration would be kept: nothing is to be changed.
NOWHERE = "/dev/null"


class Context(Closable):
    """What checks read of the host, through `kernel`. `close` it when done.

    The configuration names the driver root where the caller did not: `root` and `ldcache` are the caller's or "".
    `programs` is the directory of this installation's programs, "" where there is none.
    """

    def __init__(
        self, kernel: Kernel, options: DriverOptions, root: str = "", ldcache: str = "", programs: str = ""
    ) -> None:
        self.kernel = kernel
        self.nvc_cli = f"nvc-cli --root {root}" if root else "nvc-cli"  # in commands
        self.programs = programs
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
        self.root = str(self.options.root)  # of the driver

    def close(self) -> None:
        """Release what is held open."""
        for held in vars(self).keys() & {"host", "inside"}:
            getattr(self, held).close()

    def path(self, inside: str) -> str:
        """The path on the host of something in the driver root."""
        return inside if self.root == "/" else self.root.rstrip("/") + inside

    def device(self, path: str) -> str:
        """The path on the host of a device node."""
        return self.host.devices.path.rstrip("/") + path

    @cached_property
    def host(self) -> Host:
        """The driver root and where /proc, /sys and /dev are. Raises Blocked where it cannot be opened."""
        try:
            return Host.open(self.kernel, self.options)
        except NvcError:
            raise Blocked("driver.root") from None

    @cached_property
    def inside(self) -> Inside:
        """What is in the container. Raises ContainerError where it cannot be looked at."""
        assert self.container is not None
        return Inside(self.kernel, self.container)

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

    @cached_property
    def asked(self) -> tuple[HostFacts | None, NvcError | None, float]:
        """What discovery finds, or why it finds nothing, and the seconds that took; never from the inventory."""
        begin = time.monotonic()
        facts, failure = None, None
        try:
            facts = discover(self.kernel, self.options)
        except NvcError as error:
            failure = error
        return facts, failure, time.monotonic() - begin

    @property
    def facts(self) -> HostFacts:
        """What discovery finds. Raises Blocked."""
        if self.asked[0] is None:
            raise Blocked("driver.nvml")
        return self.asked[0]

    @property
    def runtime_directory(self) -> str:
        """Where nvc keeps what lives until the next boot, there or not; root's, unless this user has one."""
        own = f"/run/user/{os.geteuid()}/nvc"
        if os.geteuid() == 0 and not in_user_namespace() or not os.path.isdir(own):
            return SYSTEM
        return own

    @cached_property
    def slices(self) -> tuple[tuple[SliceStatus, ...], tuple[str, ...]]:
        """Every slice, and warnings about entries that cannot be read. Raises OSError."""
        try:
            os.listdir(f"{self.runtime_directory}/vgpu")  # whoever may not look knows nothing of slices
        except FileNotFoundError:
            return (), ()
        return statuses(self.kernel, repair=False)

    def living(self) -> tuple[SliceStatus, ...]:
        """The slices of containers and programs that run. Raises OSError."""
        return tuple(one for one in self.slices[0] if one.alive)


def read_text(path: str, limit: int = FILE_MAX) -> str:
    """A file as text, without blanks around it; "" where there is none, it cannot be read or is larger."""
    return read_bytes(os.path.realpath(path), limit).decode("utf-8", "replace").strip()
