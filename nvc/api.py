"""The library: what `import nvc` offers, noun by noun. The command line is made of the same.

    driver     what nvc_init, nvc_driver_info_new, nvc_device_info_new and nvc_shutdown of libnvidia-container are
    container  nvc_container_new
    configure  nvc_driver_mount, nvc_device_mount, the MIG and IMEX mounts and nvc_ldcache_update, all or nothing
    tenants    the slices of this host

Everything raises NvcError and its kinds. What needs rights says so: looking needs none, changing a container needs
root. A process may have any number of drivers and containers; one object is for one thread at a time.
"""

from __future__ import annotations

from nvc.base.files import Closable
from nvc.base.program import Silent
from nvc.frontends.configure import Run, configure, opener, plan_target, undo
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.apply.executor import Outcome
    from nvc.apply.target import Layout, Target
    from nvc.frontends.configure import Log
    from nvc.kernel import Kernel
    from nvc.model.facts import Gpu, HostFacts
    from nvc.model.request import Request
    from nvc.model.selection import Selection
    from nvc.plan.listing import Row
    from nvc.plan.ops import Plan
    from nvc.slices.store.status import SliceStatus


#: What `Driver.entries` can tell of.
KINDS = ("devices", "binaries", "libraries", "ipcs", "firmwares")


class Container(Closable):
    """A container that runs or is being created: its first process, and its root file system.

    As a context manager it is held by descriptors: should the process end, its number may go to another one, and
    this container is then gone and not the other. Entering raises InputError for a path that cannot be one, and
    ContainerError where process and root file system do not belong together.
    """

    def __init__(self, pid: int, rootfs: str, kernel: Kernel | None = None, host: bool = False) -> None:
        """`pid` as this process's /proc numbers it (0: the parent process), `rootfs` as the host names it.

        With `host` there is no container, only a root file system that is seen from here, and `pid` is 0. What
        `Driver.configure` does to it stays until `undo`.
        """
        self.pid = pid
        self.rootfs = rootfs
        self.host = host
        self._kernel = kernel or LinuxKernel()
        self._target: Target | None = None

    def __enter__(self) -> Container:
        self._target = opener(self._kernel, self.pid, self.rootfs, host=self.host)()
        return self

    def close(self) -> None:
        """Let go of the container. May be called again."""
        if self._target is not None:
            self._target.close()
            self._target = None

    @property
    def layout(self) -> Layout:
        """Where its image keeps programs and libraries. Only while it is held."""
        if self._target is None:
            raise ValueError("the container is not held: use `with`")
        return self._target.layout

    def open(self) -> Target:
        """A new target, which the caller closes. Raises the same errors as entering."""
        if self._target is not None:
            return self._target.duplicate()
        return opener(self._kernel, self.pid, self.rootfs, host=self.host)()

    def undo(self, timeout: float = 10.0) -> bool:
        """Undo what `Driver.configure` did with `host`. Returns whether there was anything to undo.

        Only what still is as it was made is touched. May be called again, as after a call that was killed. Waits up
        to `timeout` seconds for a run that is at work. Raises ContainerError.
        """
        return undo(self._kernel, self.open, timeout)


class Driver(Closable):
    """The NVIDIA driver of a driver root. It is inspected when the first method is called.

    Without options, that is the root `/`, whatever the configuration says; see `configured`.
    """

    def __init__(
        self, options: DriverOptions | None = None, kernel: Kernel | None = None, log: Log | None = None
    ) -> None:
        self.options = options or DriverOptions()
        self._kernel = kernel or LinuxKernel()
        self._log: Log = log or Silent()
        self._facts: HostFacts | None = None

    @classmethod
    def configured(cls, path: str = "", kernel: Kernel | None = None, log: Log | None = None) -> Driver:
        """The driver that nvc-cli uses: with the settings of the file at `path`, else of the host's own file.

        Raises ConfigError for a file that cannot be read, or a value that is wrong.
        """
        from nvc.request.config import driver_options, load

        return cls(driver_options(load(path)), kernel, log)

    def close(self) -> None:
        """Forget what was found. May be called again; so may every other method."""
        self._facts = None

    @property
    def facts(self) -> HostFacts:
        """Driver, files, device nodes and GPUs, found once and then kept.

        Raises InitializationError where driver root or NVML are unusable, DetectionError where the host contradicts
        itself.
        """
        if self._facts is None:
            from nvc.discovery import discover

            self._facts = discover(self._kernel, self.options)
            self._log.facts(self._facts)
        return self._facts

    @property
    def version(self) -> str:
        """The driver's version, such as `580.159.04`."""
        return self.facts.driver_version

    @property
    def cuda_version(self) -> str:
        """The newest CUDA that the driver knows, such as `13.0`."""
        return self.facts.cuda_version

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """In NVML's order, each with its MIG devices; memory in MiB."""
        return self.facts.gpus

    def select(self, request: Request) -> Selection:
        """The devices that a request means.

        Raises DeviceError, MigConfigError, MigMonitorError, and RequirementError where the driver is too old.
        """
        from nvc.model.selection import select
        from nvc.request.requirements import check

        selection = select(self.facts, request)
        self._log.selection(selection)
        check(request.requirements, self.facts, selection)
        return selection

    def entries(self, request: Request, kinds: tuple[str, ...] = KINDS) -> tuple[Row, ...]:
        """The files that a request takes; `kinds` are some of KINDS."""
        from nvc.plan.listing import entries

        return entries(self.facts, self.select(request), request, kinds)

    def plan(self, container: Container, request: Request) -> Plan:
        """What `configure` would do. Changes nothing, and refuses what `configure` would refuse."""
        plan, target = plan_target(Run(self._kernel, self.options, request, container.open, self._log))
        with target:
            if plan.slice is not None and plan.slice.outer is None:
                from nvc.slices.store.registry import check

                check(self._kernel, target, plan.slice)
        return plan

    def configure(self, container: Container, request: Request, last: bool = False) -> Outcome:
        """Give a container what a request asks for: all of it, or nothing. Needs root.

        A second call with the same request changes nothing. With `last`, SIGINT stays blocked after success: for
        a program that ends by telling the outcome, which a Ctrl-C that comes too late must not turn into a failure.
        """
        run = Run(self._kernel, self.options, request, container.open, self._log, last)
        return configure(run)


def list_slices(kernel: Kernel | None = None, warn: Callable[[str], None] | None = None) -> tuple[SliceStatus, ...]:
    """The slices of this host with their limits and what their processes say they use, in bytes. Needs root.

    `warn` is told of entries that cannot be read. Raises InitializationError where there is no runtime directory.
    """
    from nvc.slices.store.status import statuses as read

    found, warnings = read(kernel or LinuxKernel())
    for warning in warnings:
        (warn or (lambda text: None))(warning)
    return found
