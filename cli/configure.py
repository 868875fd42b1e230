"""`nvc-cli configure`: discover -> select -> check -> open the container -> plan -> apply or print."""

from __future__ import annotations

from nvc import inventory, privileges
from nvc.apply.executor import apply_plan
from nvc.apply.sources import SourceChanged
from nvc.compat import compat_libraries
from nvc.discovery import discover
from nvc.errors import InputError
from nvc.kernel import LinuxKernel
from nvc.plan.build import build_plan
from nvc.requirements import check
from nvc.selection import select
from nvc.target import open_target
from nvc_cli import arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.plan.ops import Plan
    from nvc.request import DriverOptions, Request
    from nvc_cli.boot import Session


def run(session: Session) -> None:
    """Inject GPUs into one container. Raises NvcError; then nothing of it is left in the container."""
    values = session.words.values
    if "format" in values and "dry_run" not in values:
        raise InputError("--format", cause="only with --dry-run")
    form = arguments.choice(values, "format", ("text", "json"))
    request = arguments.request(values)
    options = arguments.driver_options(session.globals, request.imex_channels)
    pid, rootfs = arguments.pid(values), arguments.rootfs(session.words.rest)
    dry_run = form if "dry_run" in values else ""

    privileges.reduce("configure", options.load_kmods)
    try:
        _configure(session, request, options, pid, rootfs, dry_run)
    except SourceChanged as change:  # raised before anything was done
        if not options.inventory:
            raise
        session.log.step(f"{change}; what an earlier run found is stale, looking again")
        inventory.forget(options)
        _configure(session, request, options, pid, rootfs, dry_run)


def _configure(
    session: Session, request: Request, options: DriverOptions, pid: int, rootfs: str, dry_run: str
) -> None:
    kernel, log = LinuxKernel(), session.log
    facts = discover(kernel, options)
    log.facts(facts)
    selection = select(facts, request)
    log.selection(selection)
    check(request.requirements, facts, selection)
    target = open_target(kernel, pid, rootfs)
    log.step(f"container process {pid or 'none'}, rootfs {rootfs}")
    wants_compat = request.cuda_compat_mode != "disabled"
    compat = compat_libraries(kernel, target.rootfs, facts.driver_version) if wants_compat else ()
    plan = build_plan(facts, selection, request, target.layout, compat)
    log.plan(plan)
    if dry_run:
        _show(plan, dry_run)
        return
    outcome = apply_plan(kernel, plan, target, options.timeout)
    log.step(f"{outcome.changes} changes")
    log.warnings(outcome.warnings)


def _show(plan: Plan, form: str) -> None:
    from nvc.plan.describe import describe, document
    from nvc_cli import output

    output.write(output.json_text(document(plan)) if form == "json" else describe(plan))
