"""`nvc-cli configure`: words become a request, `nvc.configure` does the work."""

from __future__ import annotations

from nvc import privileges
from nvc.errors import InputError
from nvc.library import Container, Driver
from nvc_cli import arguments
from nvc_cli.options import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.plan.ops import Plan
    from nvc_cli.boot import Session


def run(session: Session) -> None:
    """Inject GPUs into one container. Raises NvcError; then nothing of it is left in the container."""
    values = session.words.values
    if "format" in values and "dry_run" not in values:
        raise InputError("--format", cause="only with --dry-run")
    form = arguments.choice(values, "format", FORMATS)
    request = arguments.request(values)
    options = arguments.driver_options(session.globals, request.imex_channels)
    pid, rootfs = arguments.pid(values), arguments.rootfs(session.words.rest)

    privileges.reduce("configure", options.load_kmods)
    driver, container = Driver(options, log=session.log), Container(pid, rootfs)
    if "dry_run" in values:
        _show(driver.plan(container, request), form)
        return
    outcome = driver.configure(container, request, last=True)
    session.log.step(f"{outcome.changes} changes")
    session.log.warnings(outcome.warnings)
    if outcome.warnings:  # only after success: engines show a hook's first line as the cause of its failure
        try:
            from nvc_cli.output import warn
        except ImportError:  # the container is complete: too late to fail
            return
        warn(session.program, outcome.warnings)


def _show(plan: Plan, form: str) -> None:
    from nvc.plan.describe import describe, document, table
    from nvc_cli import output

    if form in ("json", "yaml"):
        output.write(output.document_text(document(plan), form))
    elif form == "table":
        output.write(output.emphasised(table(plan, output.columns())))
    else:
        output.write(describe(plan))
