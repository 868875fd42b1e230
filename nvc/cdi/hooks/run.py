"""From the steps of a call to one plan, and its execution in the container that standard input names."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.apply.executor import apply_plan, repair
from nvc.cdi.hooks.arguments import container_path
from nvc.cdi.hooks.bundle import slices_of
from nvc.cdi.hooks.libraries import ENTRIES_MAX, mounted_libraries
from nvc.cdi.hooks.place import OTHER, is_foreign_readonly, kind_at
from nvc.cdi.hookspec import LINKS, PROFILE, STEP
from nvc.deadline import set_deadline
from nvc.errors import ContainerError, DetectionError, InputError, SourceChanged
from nvc.kernel import LinuxKernel
from nvc.oci import read_bundle, read_state
from nvc.plan.ops import LoaderEntry, Plan, Symlink, UpdateLoaderCache
from nvc.privileges import reduce
from nvc.target import SELF, open_target, shares_mount_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvc.apply.executor import Outcome
    from nvc.cdi.hooks.arguments import Call, HookCall
    from nvc.cdi.hooks.slices import Asked, Limits
    from nvc.kernel import Kernel
    from nvc.plan.ops import Op
    from nvc.target import Target

CACHE = "/etc/ld.so.cache"
HINT = "nvc-cdi-hook is to be called by an OCI runtime, as a createContainer hook"


def run_steps(call: Call, log: Callable[[str], None]) -> tuple[str, ...]:
    """Do what a call asks for; warnings are returned, the plan is told to `log` if the call says so.

    Raises NvcError: the container is then as it was.
    """
    kernel = LinuxKernel()
    set_deadline(30.0)
    target, asked, sliced = _container(kernel, call)
    try:
        try:
            build, outcome = _run(kernel, target, call, asked, sliced, log)
        except SourceChanged:  # raised before anything was done: what an earlier run found is stale
            if asked is None:
                raise
            from nvc import inventory

            inventory.forget(asked.options)
            build, outcome = _run(kernel, target, call, asked, sliced, log)
        warnings = (*build.warnings, *outcome.warnings)
        for step in call.steps:
            if step.name == "chmod":
                from nvc.cdi.hooks.modes import change_modes

                mode, paths = build.modes[step]
                warnings += change_modes(kernel, target.rootfs, mode, paths)[1]
        return warnings
    finally:
        target.close()


def _run(
    kernel: Kernel,
    target: Target,
    call: Call,
    asked: Asked | None,
    sliced: bool,
    log: Callable[[str], None],
) -> tuple[_Building, Outcome]:
    """Build the plan of a call and apply it; with a slice, its quota first."""
    repair(kernel, target, 10.0)
    build = _Building(kernel, target, sliced)
    if asked is not None:
        from nvc.cdi.hooks.slices import limits

        build.limits = limits(kernel, target, asked)
    for step in call.steps:
        build.add(step)
    plan = build.plan()
    if call.debug:
        from nvc.plan.describe import describe

        log(describe(plan))
    if build.limits is None:
        return build, apply_plan(kernel, plan, target, last=True)
    from nvc.slices.build.builder import install_slice

    outcome = install_slice(
        kernel, target, build.limits.slice, build.limits.libs_dir, 10.0,
        lambda: apply_plan(kernel, plan, target, last=True),
    )  # fmt: skip
    return build, outcome


def _container(kernel: Kernel, call: Call) -> tuple[Target, Asked | None, bool]:
    """The container whose namespaces this process is in, held open; what limits it, and whether something does.

    Raises ContainerError, InputError.
    """
    if call.spec:
        try:
            fd = os.open(call.spec, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ContainerError.of("read container state", call.spec, error) from None
        state = read_state(fd)
        os.close(fd)
    else:
        state = read_state()
    container, document = read_bundle(state.bundle)
    rootfs = container.rootfs
    limited, sliced = None, bool(slices_of(document))
    if any(step.name == STEP for step in call.steps):
        from nvc.cdi.hooks.slices import asked

        limited = asked(state.bundle, container, document, call.steps)
        sliced = sliced or limited is not None
    reduce("configure", kernel=kernel)
    if _is_outside(kernel, state.pid):
        raise ContainerError("open container", rootfs, "this is not its mount namespace", HINT)
    target = open_target(kernel, SELF, rootfs, state.id, state.bundle)
    if not kernel.is_mount_root(target.rootfs):
        target.close()
        raise ContainerError("open rootfs", rootfs, "is not a mount of this namespace", HINT)
    return target, limited, sliced


def _is_outside(kernel: Kernel, pid: int) -> bool:
    """Whether the container's process is seen to be in another mount namespace, as in a createRuntime hook.

    In a createContainer hook runtimes give 0, or 1, or a number that means nothing here.
    """
    try:
        return pid > 1 and not shares_mount_namespace(kernel, pid)
    except ContainerError:
        return False


class _Building:
    """Collects operations: what is mounted first, then links, then the loader cache."""

    def __init__(self, kernel: Kernel, target: Target, sliced: bool) -> None:
        self.kernel = kernel
        self.target = target
        self.sliced = sliced
        self.limits: Limits | None = None
        self.driver_root = "/"
        self.mounts: list[Op] = []
        self.links: dict[str, Symlink] = {}
        self.entries: dict[tuple[str, str], LoaderEntry] = {}
        self.compat_asked = False
        self.compat: list[tuple[str, str]] = []  # SONAME and path, for the loader to take first
        self.modes: dict[HookCall, tuple[int, list[str]]] = {}
        self.warnings: list[str] = []
        self.folders: list[str] = []
        self.foreign: dict[str, bool] = {}  # directories on read-only mounts of the host

    def add(self, step: HookCall) -> None:
        """Check a step and take it in. Raises InputError."""
        if step.name == "create-symlinks":
            for link in step.all("link"):
                self._place(self._link(step.name, link))
        elif step.name == "update-ldcache":
            self.folders += [container_path(step.name, "folder", folder) for folder in step.all("folder")]
        elif step.name == "enable-cuda-compat":
            self._enable_compat(step)
        elif step.name == STEP:
            if self.limits is not None:
                self.mounts += self.limits.ops
                self.compat += [(library.soname, library.path) for library in self.limits.compat]
        elif step.name == LINKS:
            from nvc.cdi.hooks.graphics import present

            links = [self._link(step.name, link) for link in step.all("link")]
            for made in present(self.kernel, self.target.rootfs, links):
                self._place(made)
        elif step.name == PROFILE:
            from nvc.cdi.hooks.graphics import visible_ops

            self.mounts += visible_ops(self.kernel, self.target.rootfs)
        elif step.name == "disable-device-node-modification":
            from nvc.cdi.hooks.procfs import unmodifiable_ops

            self.mounts += unmodifiable_ops(self.kernel)
        elif step.name == "simulate-proc":
            from nvc.cdi.hooks.procfs import absolute_root, simulated_ops

            self.driver_root = absolute_root(step.last("driver-root"))
            self.mounts += simulated_ops(self.kernel, self.driver_root, step.all("entry"))
        else:
            from nvc.cdi.hooks.modes import parse_mode

            paths = [container_path("chmod", "path", path) for path in step.all("path")]
            self.modes[step] = parse_mode(step.last("mode")), paths

    def plan(self) -> Plan:
        """Everything as one plan."""
        if self.folders:
            self._update_cache()
        arch = os.uname().machine
        entries = {(soname, arch): LoaderEntry(soname, path, arch) for soname, path in self.compat}
        for key, entry in self.entries.items():
            entries.setdefault(key, entry)
        ops: list[Op] = [*self.mounts, *self.links.values()]
        if entries:
            ops.append(UpdateLoaderCache(tuple(entries.values())[:ENTRIES_MAX]))
        root = self.driver_root
        if self.limits is None:
            return Plan("/", root, "/", "", (), tuple(dict.fromkeys(ops)))
        from nvc.plan.slices import warnings

        facts, slice = self.limits.facts, self.limits.slice
        devices = tuple(device.uuid for device in slice.devices)
        slice = slice.replace(left_out=tuple(sorted(self.limits.hidden)))
        return Plan(
            facts.driver_root, root, "/", facts.driver_label, devices, tuple(dict.fromkeys(ops)),
            warnings(slice), slice,
        )  # fmt: skip

    def _link(self, step: str, value: str) -> Symlink:
        """A link that is written as TARGET::LINK. Raises InputError."""
        text, colons, path = value.partition("::")
        if not colons or not text or "\0" in text or "\n" in text or len(text) >= 4096:
            raise InputError(step, f"--link={value}", "want TARGET::LINK")
        return Symlink(text, container_path(step, "link", path))

    def _place(self, link: Symlink) -> None:
        """Take in a link if its place is free or has a link."""
        directory = link.target.rpartition("/")[0] or "/"
        if directory not in self.foreign:  # most links are in one
            self.foreign[directory] = is_foreign_readonly(self.kernel, self.target.rootfs, directory)
        if self.foreign[directory]:
            self.warnings.append(f"{link.target}: not made, it is on a read-only mount of the host")
        elif self._kind(link.target) == OTHER:
            self.warnings.append(f"{link.target}: not made, the image has a file there")
        else:
            self.links.setdefault(link.target, link)

    def _kind(self, path: str) -> int:
        try:
            return kind_at(self.kernel, self.target.rootfs, path)
        except OSError as error:
            raise ContainerError.of("create-symlinks", path, error) from None

    def _enable_compat(self, step: HookCall) -> None:
        version = step.last("host-driver-version")
        root = step.last("cuda-compat-container-root")
        if not version.replace(".", "").isalnum() or not version.isascii() or len(version) > 64:
            raise InputError(step.name, f"--host-driver-version={version}", "want a driver version")
        directory = container_path(step.name, "cuda-compat-container-root", root) if root else ""
        self.compat_asked = True
        if self.sliced:
            return
        self.compat += self._compat(version, directory, step.last("host-cuda-version"))

    def _compat(self, version: str, directory: str, cuda: str = "") -> Iterable[tuple[str, str]]:
        from nvc.compat import DIRECTORY, compat_libraries

        kernel, rootfs = self.kernel, self.target.rootfs
        found = compat_libraries(kernel, rootfs, version, directory or DIRECTORY, cuda)
        return [(library.soname, library.path) for library in found]

    def _update_cache(self) -> None:
        found = mounted_libraries(self.kernel, self.target.rootfs, self.folders, frozenset(self.links))
        self.warnings += found.warnings
        hidden = self.limits.hidden if self.limits else frozenset()
        gone = {link.target for link in found.links if link.text in hidden}
        for link in found.links:
            if link.target not in gone:
                self._place(link)
        self.entries = {
            (entry.soname, entry.arch): entry for entry in found.entries if entry.path not in gone
        }
        if not self.compat_asked and not self.sliced and found.driver_version:
            # In a call of its own, enable-cuda-compat has put its entries first already: there they stay.
            directory = self._first_compat()
            if directory:
                self.compat += self._compat(found.driver_version, directory)

    def _first_compat(self) -> str:
        """The directory named `compat` from which the loader takes libcuda now, or ""."""
        from nvc.discovery.ldcache import ARCH_FLAGS, ARCH_MASK, CACHE_LIMIT, parse_cache

        wanted = ARCH_FLAGS[os.uname().machine]
        try:
            fd = self.kernel.open_regular(self.target.rootfs, CACHE)
        except OSError:
            return ""
        try:
            size = os.fstat(fd).st_size
            entries = parse_cache(os.pread(fd, min(size, CACHE_LIMIT), 0), (b"libcuda.so.1\0",))
        except (OSError, DetectionError):
            return ""
        finally:
            os.close(fd)
        for flags, _, path in entries:
            if flags & ARCH_MASK == wanted:
                directory = path.rpartition("/")[0]
                return directory if directory.endswith("/compat") else ""
        return ""
