"""From the steps of a call to one plan, and its execution in the container that standard input names."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.apply.executor import apply_plan, repair
from nvc.apply.target import SELF, open_target, shares_mount_namespace
from nvc.base.deadline import set_deadline
from nvc.base.errors import ContainerError, SourceChanged
from nvc.frontends.cdi.hooks.arguments import container_path
from nvc.frontends.cdi.hooks.bundle import slices_of
from nvc.frontends.cdi.hooks.steps import Steps
from nvc.frontends.cdi.hookspec import STEP
from nvc.kernel import LinuxKernel
from nvc.kernel.privileges import reduce
from nvc.plan.ops import Plan, UpdateLoaderCache
from nvc.request.oci import read_bundle, read_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.apply.executor import Outcome
    from nvc.apply.target import Target
    from nvc.frontends.cdi.hooks.arguments import Call, HookCall
    from nvc.frontends.cdi.hooks.slices import Asked, Limits
    from nvc.kernel import Kernel
    from nvc.plan.ops import Op

HINT = "nvc-cdi-hook is to be called by an OCI runtime, as a createContainer hook"


def run_steps(call: Call, log: Callable[[str], None]) -> tuple[str, ...]:
    """Do what a call asks for; warnings are returned, the plan is told to `log` if the call says so.

    Raises NvcError: the container is then as it was.
    """
    kernel = LinuxKernel()
    set_deadline(30.0)
    target, asked, sliced = _container(kernel, call)
    with target:
        try:
            build, outcome = _run(kernel, target, call, asked, sliced, log)
        except SourceChanged:  # raised before anything was done: what an earlier run found is stale
            if asked is None:
                raise
            from nvc.discovery import inventory

            inventory.forget(asked.options)
            build, outcome = _run(kernel, target, call, asked, sliced, log)
        warnings = (*build.warnings, *outcome.warnings)
        for step in call.steps:
            if step.name == "chmod":
                from nvc.frontends.cdi.hooks.modes import change_modes

                mode, paths = build.modes[step]
                warnings += change_modes(kernel, target.rootfs, mode, paths)
        return warnings


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
    build = _Building(target, sliced)
    if asked is not None:
        from nvc.frontends.cdi.hooks.slices import limits

        build.limits = limits(kernel, target, asked)
    for step in call.steps:
        build.add(step)
    plan = build.plan()
    if call.debug:
        from nvc.plan.describe import describe

        log(describe(plan))
    if build.limits is None:
        return build, apply_plan(kernel, plan, target, last=True)
    from nvc.slices.make.builder import install_slice

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
        from nvc.frontends.cdi.hooks.slices import asked

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

    def __init__(self, target: Target, sliced: bool) -> None:
        self.steps = Steps(target.rootfs, sliced)
        self.kernel = LinuxKernel()
        self.limits: Limits | None = None
        self.driver_root = "/"
        self.mounts: list[Op] = []
        self.modes: dict[HookCall, tuple[int, list[str]]] = {}
        self.warnings: tuple[str, ...] = ()

    def add(self, step: HookCall) -> None:
        """Check a step and take it in. Raises InputError, ContainerError."""
        if step.name == STEP:
            if self.limits is not None:
                self.mounts += self.limits.ops
                for library in self.limits.compat:
                    self.steps.prefer(library.soname, library.path)
        elif step.name == "simulate-proc":
            from nvc.frontends.cdi.hooks.procfs import absolute_root, simulated_ops

            self.driver_root = absolute_root(step.last("driver-root"))
            self.mounts += simulated_ops(self.kernel, self.driver_root, step.all("entry"))
        elif step.name == "chmod":
            from nvc.frontends.cdi.hooks.modes import parse_mode

            paths = [container_path("chmod", "path", path) for path in step.all("path")]
            self.modes[step] = parse_mode(step.last("mode")), paths
        else:
            self.mounts += self.steps.add(step).mounts

    def plan(self) -> Plan:
        """Everything as one plan. Raises ContainerError."""
        found = self.steps.finish(self.limits.hidden if self.limits else frozenset())
        self.warnings = found.warnings
        ops: list[Op] = [*self.mounts, *found.links]
        if found.entries:
            ops.append(UpdateLoaderCache(found.entries))
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
