"""`nvc-cli configure`: words become a request, `nvc.frontends.configure` does the work."""

from __future__ import annotations

import posix
import sys

from nvc.api import Container, Driver
from nvc.base.errors import InputError
from nvc.frontends.configure import Run, configure
from nvc.kernel import LinuxKernel, privileges
from nvc_cli import arguments
from nvc_cli.options import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.apply.again import Call
    from nvc.plan.ops import Plan
    from nvc_cli.boot import Session


#: Options of nvidia-container-cli that its callers give and people who type do not: such a call without --pid is
#: the standalone mode, as that of LXC's hook.
_CALLERS = ("ldconfig", "no_cgroups", "no_devbind", "no_cntlibs", "load_kmods", "no_pivot", "user")


def run(session: Session) -> None:
    """Inject GPUs into one container. Raises NvcError; then nothing of it is left in the container."""
    values = session.words.values
    if "undo" in values:
        _undo(session)
        return
    if "format" in values and "dry_run" not in values:
        raise InputError("--format", cause="only with --dry-run")
    form = arguments.choice(values, "format", FORMATS)
    request = arguments.request(values)
    pid, rootfs = arguments.pid(values), arguments.rootfs(session.words.rest)
    again = _again(session, pid, rootfs)
    options = arguments.driver_options(session.globals, request.imex_channels)
    host = _is_host(session)

    privileges.reduce("configure", options.load_kmods)
    container = Container(pid, rootfs, host=host)
    if "dry_run" in values:
        _show(Driver(options, log=session.log).plan(container, request), form)
        return
    outcome = configure(
        Run(LinuxKernel(), options, request, container.open, session.log, last=True, again=again)
    )
    session.log.step(f"{outcome.changes} changes")
    session.log.warnings(outcome.warnings)
    notes = outcome.warnings
    if outcome.changes and "pid" not in values and not host and _stays():
        notes += (f"no --pid: these mounts are on this host, until `configure --undo {rootfs}`",)
    if notes:  # only after success: engines show a hook's first line as the cause of its failure
        try:
            from nvc_cli.output import warn
        except ImportError:  # the container is complete: too late to fail
            return
        warn(session.program, notes)


def _stays() -> bool:
    """Whether the host has the mounts. Those of callers that made a mount namespace end with it."""
    from nvc.apply.target import is_of_process_1

    return is_of_process_1()


def _again(session: Session, pid: int, rootfs: str) -> Call | None:
    """This call for any container, where the launcher may be able to do it. None where more than its words decides.

    native/launcher/replay/words.c reads the same words.
    """
    words, given = sys.argv[1:], f"--pid={pid}"
    root = arguments.text(session.globals, "root", "/")
    plain = (
        type(session.log).__name__ == "Silent"
        and root.startswith("/")
        and "dry_run" not in session.words.values
    )
    only = [word for word in words if word.startswith("--pid")] == [given] and words[-1] == rootfs
    if not (plain and only and pid) or b"CUDA_MPS_PIPE_DIRECTORY" in posix.environ:
        return None
    from nvc.apply.again import Call, settings

    return Call(("configure", *("--pid" if word == given else word for word in words[:-1])), settings())


def _is_host(session: Session) -> bool:
    """Whether there is no container, by the caller's own word. Raises InputError where it may be forgotten."""
    values = session.words.values
    if "host" in values and "pid" in values:
        raise InputError("--host", cause="not together with --pid: there is no container")
    called = any(name in values or name in session.globals for name in _CALLERS)
    if "host" not in values and "pid" not in values and "dry_run" not in values and not called:
        raise InputError(
            "configure", cause="no --pid: this would mount on the host",
            hint="name the container's init process with --pid, or say --host if you mean ROOTFS as seen from here",
        )  # fmt: skip
    return "host" in values


def _undo(session: Session) -> None:
    """Take back what a call without a container did. Raises NvcError."""
    others = sorted(session.words.values.keys() - {"undo", "host"})
    if others:
        raise InputError("--undo", cause=f"not together with --{others[0].replace('_', '-')}")
    options = arguments.driver_options(session.globals, configured=False)
    rootfs = arguments.rootfs(session.words.rest)
    privileges.reduce("configure")
    if not Container(0, rootfs, host=True).undo(options.timeout):
        from nvc_cli.output import say

        say(session.program, f"{rootfs} has no changes by nvc: nothing to undo")


def _show(plan: Plan, form: str) -> None:
    from nvc.plan.describe import describe, document, table
    from nvc_cli import output

    output.show(form, lambda: document(plan), lambda width: table(plan, width), lambda: describe(plan))
