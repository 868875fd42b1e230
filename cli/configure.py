"""`nvc-cli configure`: discover -> select -> check -> open the container -> plan -> apply or print."""

from __future__ import annotations

from nvc import privileges
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
    from nvc_cli.boot import Session


def run(session: Session) -> None:
    """Inject GPUs into one container. Raises NvcError; then nothing of it is left in the container."""
    values, log = session.words.values, session.log
    request = arguments.request(values)
    options = arguments.driver_options(session.globals, request.imex_channels)
    pid, rootfs = arguments.pid(values), arguments.rootfs(session.words.rest)
    dry_run, form = arguments.flag(values, "dry_run"), arguments.choice(values, "format", ("text", "json"))
    if "format" in values and not dry_run:
        raise InputError("--format", cause="only with --dry-run")

    privileges.reduce("configure", options.load_kmods)
    kernel = LinuxKernel()
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
        _show(plan, form)
        return
    from nvc.apply.executor import apply_plan

    outcome = apply_plan(kernel, plan, target, options.timeout)
    log.step(f"{outcome.changes} changes")
    log.warnings(outcome.warnings)


def _show(plan: Plan, form: str) -> None:
    from nvc.plan.describe import describe, document
    from nvc_cli import output

    output.write(output.json_text(document(plan)) if form == "json" else describe(plan))
