"""apply_plan: the only place with effects on a container. All of them, or none."""

from __future__ import annotations

from nvc.apply.interrupts import HeldInterrupts
from nvc.apply.journal import HOST, is_interrupted, open_journal, read_journal
from nvc.apply.program import build_program, repair_program
from nvc.apply.sources import Sources
from nvc.base.deadline import clear_deadline
from nvc.base.errors import (
    ContainerError,
    InternalError,
    LoaderCacheError,
    MountError,
    NvcError,
    SourceChanged,
    remedy,
)
from nvc.base.value import Value
from nvc.kernel import ApplyTarget, lib, strerror
from nvc.plan.ops import AllowDevice, UpdateLoaderCache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.apply.cgroup import RuleChange
    from nvc.apply.journal import Journal
    from nvc.apply.program import Program
    from nvc.apply.target import Target
    from nvc.kernel import ApplyReport, Kernel
    from nvc.plan.ops import Plan


class Outcome(Value):
    """What was done: `changes` is 0 when the container was already as the plan wants it."""

    changes: int
    warnings: tuple[str, ...]
    programs: tuple[tuple[str, bool], ...] | None = None  # of the container's cgroup; see RuleChange


def apply_plan(
    kernel: Kernel,
    plan: Plan,
    target: Target,
    timeout: float = 10.0,
    done: Callable[[str], None] = lambda stage: None,
    last: bool = False,
) -> Outcome:
    """Give the container at `target` everything in `plan`; `timeout` in seconds for the lock and the applier.

    With `last` the process ends by telling this call's outcome, and SIGINT stays blocked after success. Raises
    NvcError or KeyboardInterrupt; the container is then as it was before.
    """
    with open_journal(kernel, _key(kernel, target), timeout) as journal:
        if target.host:
            journal.begin(target.rootfs_path)
        with Sources(kernel, plan, target.rootfs) as sources:
            program = build_program(plan, sources, journal.interrupted)
            done("open sources")
            held = HeldInterrupts()
            if last:
                clear_deadline()
            try:
                outcome = _change(kernel, plan, target, program, journal, timeout, done)
            except BaseException as error:
                held.release()
                # The kernel mounts no removed file.
                if isinstance(error, MountError) and not journal.keep and sources.are_gone():
                    raise SourceChanged("mount driver file", error.path, "removed since it was found") from None
                raise
    held.forget(last)
    warnings = (*plan.warnings, *sources.warnings, *outcome.warnings)
    return Outcome(outcome.changes, warnings, outcome.programs)


def _key(kernel: Kernel, target: Target) -> str:
    """The name of the target's journal. A container that has a rootfs of the host's is another target."""
    return target.key(kernel) + (HOST if target.host else "")


def repair(kernel: Kernel, target: Target, timeout: float) -> bool:
    """Undo what a run that was killed has left in the container; of the host, what any run has done there.

    A plan rests on what the image holds, so this comes before anybody looks. Waits up to `timeout` seconds
    for a run that is at work. Whether there was anything. Raises ContainerError; what could not be undone then is
    undone by the next call.
    """
    key = _key(kernel, target)
    if not is_interrupted(key):
        return False
    with open_journal(kernel, key, timeout) as journal:
        if not journal.interrupted:
            return False
        place = _place(target, -1, timeout)
        if target.host:  # who says `--undo` wants everything as it was
            place = place.replace(leave=False)
        try:
            report = kernel.apply(repair_program(journal.interrupted), place)
        except OSError as error:
            raise ContainerError.of(_REPAIR, target.rootfs_path, error, _REPAIR_HINT) from None
        if report.error:
            raise ContainerError(_REPAIR, report.path, strerror(report.error), _REPAIR_HINT)
        journal.keep = False
        return True


def _change(
    kernel: Kernel,
    plan: Plan,
    target: Target,
    program: Program,
    journal: Journal,
    timeout: float,
    done: Callable[[str], None],
) -> Outcome:
    """Device rules, then the applier. When one fails, what the other did is taken back."""
    allowed = _allow_devices(kernel, plan, target)
    done("device rules")
    try:
        report = _run(kernel, target, program, journal, timeout)
    except BaseException:
        allowed.undo()
        raise
    finally:
        allowed.close()
    done("mount")
    warnings = (*((allowed.warning,) if allowed.warning else ()), *report.warnings)
    return Outcome(report.changes, warnings, allowed.programs)


def _allow_devices(kernel: Kernel, plan: Plan, target: Target) -> RuleChange:
    """Apply the plan's device rules, before the nodes appear; what is returned can take them back."""
    from nvc.apply.cgroup import RuleChange, prepare

    rules = tuple((op.major, op.minor) for op in plan.ops if isinstance(op, AllowDevice))
    if not rules:
        return RuleChange()
    from nvc.apply.cgroup.find import device_cgroup

    cgroup = device_cgroup(kernel, target.proc)
    if cgroup is None:
        return RuleChange()
    with cgroup:
        change = prepare(kernel, cgroup, rules)
    try:
        change.apply()
    except BaseException:
        with change:
            change.undo()
        raise
    return change


def _place(target: Target, journal: int, timeout: float) -> ApplyTarget:
    """Where the applier works. A caller's root file system may be that of many hosts."""
    ids = target.fsuid, target.fsgid
    return ApplyTarget(target.mount_namespace, target.rootfs, journal, timeout, *ids, target.standalone)


def _run(kernel: Kernel, target: Target, program: Program, journal: Journal, timeout: float) -> ApplyReport:
    place = _place(target, journal.fd, timeout).replace(keep=target.host)
    try:
        report = kernel.apply(program.packed(), place)
    except OSError as error:
        hint = "see --timeout if the host is busy"
        if journal.fd < 0 or not _repair(kernel, journal, place):
            hint += f"; {_left(journal)}"
        raise ContainerError.of("configure container", target.rootfs_path, error, hint) from None
    if report.error:
        journal.keep = journal.keep or report.undo_failures > 0
        raise _failure(report, program, _left(journal) if report.undo_failures else "")
    journal.keep = False
    if target.host and report.changes:
        journal.finish()
    return report


def _repair(kernel: Kernel, journal: Journal, place: ApplyTarget) -> bool:
    """Undo at once what an applier that was stopped has left behind, as the next run would. Whether that worked."""
    journal.keep = True
    try:
        report = kernel.apply(repair_program(read_journal(journal.fd)), place.replace(journal=-1))
    except OSError:
        return False  # whatever stops every applier here: the next run finds the journal
    journal.keep = report.error != 0
    return not journal.keep


def _left(journal: Journal) -> str:
    """What a message says where something of a run that failed stays in the container."""
    return _NOT_UNDONE if journal.fd >= 0 else _UNKNOWN


def _failure(report: ApplyReport, program: Program, left: str) -> NvcError:
    step, path, cause = report.step, report.path, strerror(report.error)
    if report.failure == lib.NVC_FAILED_PROGRAM:
        return InternalError(step, path, cause)
    if report.failure == lib.NVC_FAILED_REPAIR:
        return ContainerError(step, path, cause, _REPAIR_HINT)
    hint = _HINTS.get(report.error) or remedy(report.error)
    if report.failure == lib.NVC_FAILED_SHARED:
        cause, hint = _SHARED, _SHARED_HINT
    if report.failure == lib.NVC_FAILED_LOST:
        cause, hint = _LOST, _LOST_HINT
    op = program.ops[report.op] if 0 <= report.op < len(program.ops) else None
    kind = LoaderCacheError if isinstance(op, UpdateLoaderCache) else MountError
    return kind(step, path, cause, "; ".join(filter(None, (hint, left))))


_REPAIR = "repair an interrupted run"
_REPAIR_HINT = "remove what is mounted there, or create the container again"
_NOT_UNDONE = "what was done could not all be undone: the next run tries it again"
_UNKNOWN = "what was done stays, as no journal could be kept: create the container again"
_SHARED = "the volume there is shared with the host: what is mounted on it would appear on the host"
_SHARED_HINT = "mount the volume elsewhere, or with the propagation private or rslave (Kubernetes: HostToContainer)"
_LOST = "another program has removed or covered what was mounted there"
_LOST_HINT = "start again; hosts that share this root file system must not remove files that others mount on"
_HINTS = {
    2: "a directory or link on that path leads nowhere; mend the image",
    17: "something of another kind is in the way; remove it from the image",
    18: "a link of the image leads there, to a volume; remove the link, or mount the volume elsewhere",
    20: "a file is where a directory should be; remove it from the image",
    21: "a directory is where a file should be; remove it from the image",
    30: "the image, or a volume at that path, cannot be written; use one with a writable layer",
    40: "the image has a symlink loop at that path",
    75: "the directory belongs to an id of another user namespace, or, on a volume, not to the root of this one",
}
