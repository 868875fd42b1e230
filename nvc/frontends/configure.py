"""The main job: discover -> select -> check -> open the container -> plan -> apply.

Both entry points, the command line and the hooks, come through here with the same request.
"""

from __future__ import annotations

import sys

from nvc.base.errors import InputError, SourceChanged
from nvc.base.types import Callable, Protocol
from nvc.base.value import Value
from nvc.discovery import discover, inventory
from nvc.kernel import check_floor

#: How long a container start waits for a probe that has answered to be gone, seconds. It ends while the plan is
#: applied; on an H100 that takes it 20 ms.
_PROBE_END = 0.1

#: How many time-outs a start may take between the first look into a container and its change: for the repair of an
#: interrupted run, its lock and that of the start itself.
_WAITS = 3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.apply.again import Call
    from nvc.apply.executor import Outcome
    from nvc.apply.target import Target
    from nvc.discovery.driver.compat import CompatLibrary
    from nvc.kernel import Kernel
    from nvc.model.facts import HostFacts
    from nvc.model.request import DriverOptions, Request
    from nvc.model.selection import Selection
    from nvc.model.slices.slice import Slice
    from nvc.plan.ops import Plan


class Log(Protocol):
    """Told of each step of a run."""

    def step(self, text: str) -> None: ...
    def facts(self, facts: HostFacts) -> None: ...
    def selection(self, selection: Selection) -> None: ...
    def plan(self, plan: Plan) -> None: ...
    def done(self, stage: str) -> None: ...


class RunLog(Log, Protocol):
    """Told of a program's steps and of its end."""

    def warnings(self, warnings: tuple[str, ...]) -> None: ...
    def error(self, text: str) -> None: ...


class Run(Value):
    """What is to be done to one container, and how."""

    kernel: Kernel
    options: DriverOptions
    request: Request
    opened: Callable[[], Target]  # opens the container, once for each attempt
    log: Log
    last: bool = False  # the process ends by telling the outcome; see nvc.apply.executor
    again: Call | None = None  # notes how it was done


def opener(
    kernel: Kernel, pid: int, rootfs: str, called: tuple[str, str] = ("", ""), host: bool = False
) -> Callable[[], Target]:
    """What opens the container of `pid` (0: the parent process) when it is called.

    `called`: its id and bundle, where its runtime says them. With `host` it opens a root file system without a
    container.
    """

    def open_now() -> Target:
        from nvc.apply.target import open_target

        return open_target(kernel, pid, rootfs, *called, host)

    return open_now


def configure(run: Run) -> Outcome:
    """Give a container what is asked for. Where what discovery found is out of date, everything is done once more.

    Raises NvcError; the container is then as it was.
    """
    check_floor()
    try:
        return _configure(run)
    except SourceChanged as change:  # raised before anything was done
        run.log.step(f"{change}; what was found is stale, looking again")
        if run.options.inventory:
            inventory.forget(run.options)
        return _configure(run)
    finally:
        probe = sys.modules.get("nvc.kernel.probe")  # imported by a run that has asked NVML
        if probe is not None:
            probe.reap(_PROBE_END)


def undo(kernel: Kernel, opened: Callable[[], Target], timeout: float) -> bool:
    """Take back what was done to a root file system of the host, a killed run's too; whether there was anything.

    Only what still is as nvc made it is touched. Whoever is killed meanwhile calls again. Raises NvcError, also
    where there are mounts by nvc of which there is no record.
    """
    from nvc.apply.executor import repair
    from nvc.apply.target import unrecorded
    from nvc.base.errors import ContainerError

    check_floor()
    with opened() as target:
        if repair(kernel, target, timeout):
            return True
        made = unrecorded(target.rootfs)
        if made:
            raise ContainerError(
                "undo", target.rootfs_path, f"a caller's run has mounted {made}, and those keep no record",
                "end the mount namespace in which that ran, or unmount what is below the root file system",
            )  # fmt: skip
        return False


def _configure(run: Run) -> Outcome:
    plan, target = plan_target(run, repair=True)
    from nvc.apply.executor import apply_plan

    kernel, timeout = run.kernel, run.options.timeout

    def apply() -> Outcome:
        return apply_plan(kernel, plan, target, timeout, run.log.done, run.last)

    with target:
        if plan.slice is None or plan.slice.outer is not None:
            outcome = apply()
            if run.again is not None:
                run.again.keep(kernel, run.options, run.request, plan, target, outcome)
            return outcome
        from nvc.slices.make.builder import install_slice

        return install_slice(kernel, target, plan.slice, target.layout.libs_dir, timeout, apply)


def _load_the_rest() -> None:
    """Load what follows discovery, where NVML must be waited for anyway: a third of all modules."""
    import nvc.apply.executor
    import nvc.apply.target
    import nvc.discovery.driver.compat
    import nvc.model.selection
    import nvc.plan.build
    import nvc.request.requirements  # noqa: F401


def plan_target(run: Run, repair: bool = False) -> tuple[Plan, Target]:
    """Build the plan for a container. Returns the plan and the open target, which the caller closes.

    The container is opened once the request is known to be good, and not changed. But with `repair`, what a killed
    run has left there is undone: it could be taken for the image's. A run that is the `last` ends the process if
    the container's file system does not answer; see nvc.base.deadline. Raises NvcError.
    """
    kernel, options, request, log = run.kernel, run.options, run.request, run.log
    facts = discover(kernel, options, meanwhile=_load_the_rest)
    if run.again is not None:
        run.again.facts = facts
    log.done("discover")
    from nvc.discovery.driver.compat import compat_libraries
    from nvc.model.selection import select
    from nvc.plan.build import build_plan
    from nvc.request.requirements import check

    log.facts(facts)
    selection = select(facts, request)
    log.selection(selection)
    check(request.requirements, facts, selection)
    log.done("select")
    if run.last:
        from nvc.base.deadline import set_deadline

        set_deadline(_WAITS * options.timeout)
    target = run.opened()
    log.step(f"container process {target.pid}, rootfs {target.rootfs_path}")
    if target.host:  # nobody is confined: the rules of this process's own cgroup stay as they are
        request = request.replace(cgroups=False)
    if repair:
        if target.host and request.vgpu is not None:
            raise InputError(
                "make a slice", target.rootfs_path,
                "without a container, every process of the host's mount namespace would be in it",
                "start the program with `nvc-cli vgpu run`, or name a container with --pid",
            )  # fmt: skip
        from nvc.apply.executor import repair as repair_container

        repair_container(kernel, target, options.timeout)
    wants_compat = request.cuda_compat_mode != "disabled" and "compute" in request.capabilities
    slice = None
    if facts.outer is not None or request.vgpu is not None:
        request, selection, slice = _slice(kernel, facts, selection, request, target, wants_compat)
    compat: tuple[CompatLibrary, ...] = ()
    if wants_compat and slice is None:
        compat = compat_libraries(kernel, target.rootfs, facts.driver_version)
    plan = build_plan(facts, selection, request, target.layout, compat, slice)
    log.done("plan")
    log.plan(plan)
    return plan, target


def _slice(
    kernel: Kernel,
    facts: HostFacts,
    selection: Selection,
    request: Request,
    target: Target,
    compat: bool,
) -> tuple[Request, Selection, Slice | None]:
    """The container's slice; None where it has no device. What MIG isolation chooses is in the other two."""
    from nvc.discovery.outer import refuse_slices
    from nvc.slices.make.builder import build_slice, choose_devices, nested_slice

    if request.vgpu is None:
        return request, selection, nested_slice(kernel, facts, target)
    refuse_slices(facts)
    key = ""
    if request.vgpu.isolation:
        from nvc.slices.store.registry import key_of

        key = key_of(kernel, target)
    request, selection, devices = choose_devices(kernel, facts, selection, request, key)
    if not devices or request.vgpu is None:
        return request, selection, None
    libs_dir = target.layout.libs_dir
    return request, selection, build_slice(kernel, facts, devices, target, libs_dir, request.vgpu, compat)
