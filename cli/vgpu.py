"""`nvc-cli vgpu`: slices of GPUs that run, and programs that are given one."""

from __future__ import annotations

import os
import posix
import sys
import time

import click

from nvc import privileges
from nvc.errors import InputError
from nvc.kernel import LinuxKernel
from nvc_cli import arguments, output
from nvc_cli.carried import callers_environment
from nvc_cli.main import CONTEXT, program_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nvc.kernel import Kernel
    from nvc.vgpu.tenants import Tenant

FORMAT = click.option(
    "--format", "form", default="table", show_default=True, type=click.Choice(("table", "json"))
)
CLEAR = "\x1b[H\x1b[2J"


@click.group(
    context_settings=CONTEXT,
    epilog="\b\nExamples:\n"
    "  nvc-cli vgpu run --memory 10GiB -- python3 train.py\n"
    "  nvc-cli vgpu ls\n"
    "  nvc-cli vgpu set f0000154 --memory 20GiB\n"
    "  nvc-cli vgpu top",
)
def vgpu() -> None:
    """Give programs a part of a GPU's memory, and look after those that have one.

    Containers get slices by `configure --vgpu-memory` and by variables; see docs/vgpu.md.
    """


def _command(name: str, *examples: str, **more: Any) -> Callable[[Callable[..., None]], click.Command]:
    lines = "".join(f"  {example}\n" for example in examples)
    epilog = f"\b\nExample{'s' if len(examples) > 1 else ''}:\n{lines}"
    return vgpu.command(name, context_settings={**CONTEXT, **more}, epilog=epilog)


def _sharing(command: Callable[..., None]) -> Callable[..., None]:
    """Options that this version only checks, as `configure` does."""
    for name, metavar, text in (
        ("policy", "NAME", "Only native in this version."),
        ("weight", "N", "Only 1 in this version."),
        ("cores", "PERCENT", "Only 100 in this version: compute time is not limited."),
    ):
        command = click.option(f"--{name}", default=None, metavar=metavar, help=text)(command)
    return command


def _everybody(ctx: click.Context, kernel: Kernel) -> tuple[Tenant, ...]:
    from nvc.vgpu.tenants import tenants

    found, warnings = tenants(kernel)
    output.warn(program_of(ctx), warnings)
    return found


def _kernel() -> Kernel:
    privileges.reduce("configure")
    return LinuxKernel()


@_command("ls", "nvc-cli vgpu ls", "nvc-cli vgpu ls --format json")
@FORMAT
@click.pass_context
def ls_command(ctx: click.Context, form: str) -> None:
    """List slices: limits, and what their processes say that they use."""
    everybody = _everybody(ctx, _kernel())
    if form == "json":
        from nvc.vgpu.tenants import document

        output.write(output.json_text({"slices": [document(tenant) for tenant in everybody]}))
        return
    from nvc.vgpu import top

    output.write(output.emphasised(top.slices(everybody, time.time())))


@_command("show", "nvc-cli vgpu show f0000154", "nvc-cli vgpu show 4242 --format json")
@click.argument("slice_name", metavar="SLICE")
@FORMAT
@click.pass_context
def show_command(ctx: click.Context, slice_name: str, form: str) -> None:
    """Show one slice. SLICE is its name, the beginning of its key, or a process in it."""
    from nvc.vgpu import top
    from nvc.vgpu.sizes import size_text
    from nvc.vgpu.tenants import document, find

    tenant = find(_everybody(ctx, _kernel()), slice_name)
    if form == "json":
        output.write(output.json_text(document(tenant)))
        return
    entry = tenant.entry
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.created))
    lines = [
        ("slice", tenant.short), ("key", entry.key), ("rootfs", entry.rootfs or "(a program)"),
        ("libraries", entry.libs_dir), ("quota", entry.quota), ("created", created),
        ("processes", f"{top.processes_text(tenant)} use a GPU" if tenant.alive else "gone"),
    ]  # fmt: skip
    for device in tenant.devices:
        memory = size_text(device.memory) if device.memory else "unknown"
        used = top.used_text(tenant, device)
        lines.append((f"device {device.index}", f"{device.uuid}  {device.name}"))
        lines.append(("", f"limit {top.limit_text(device)} of {memory}, used {used}"))
    if tenant.problem:
        lines.append(("problem", tenant.problem))
    text = "".join(
        f"{name:<11}{''.join(c if c.isprintable() else '?' for c in value)}\n" for name, value in lines
    )
    output.write(text + ("\n" + top.processes((tenant,)) if tenant.accounts else ""))


@_command("set", "nvc-cli vgpu set f0000154 --memory 20GiB", "nvc-cli vgpu set 4242 --device 1 --memory 50%")
@click.argument("slice_name", metavar="SLICE")
@click.option("--memory", default=None, metavar="SIZE[,...]", help="The new limit, for all devices or each.")
@click.option("--unlimited", is_flag=True, help="Lift the limit.")
@click.option(
    "--device", "devices", multiple=True, metavar="ID", help="Only this: index or UUID; repeatable."
)
@_sharing
@click.pass_context
def set_command(
    ctx: click.Context,
    /,
    slice_name: str,
    memory: str | None,
    unlimited: bool,
    devices: tuple[str, ...],
    **given: Any,
) -> None:
    """Change the limits of a slice while its processes run.

    A limit below what is in use takes nothing away: new allocations fail until enough is freed.
    """
    wanted = _wanted({"memory": memory, **given})
    if (wanted is None) != unlimited:
        raise click.UsageError("want either --memory or --unlimited")
    from nvc.vgpu.change import set_limits
    from nvc.vgpu.tenants import find

    kernel = _kernel()
    output.warn(
        program_of(ctx), set_limits(kernel, find(_everybody(ctx, kernel), slice_name), wanted, devices)
    )


def _wanted(given: dict[str, Any]) -> Any:
    return arguments.slice_request({name: value for name, value in given.items() if value}, "")


@_command("rm", "nvc-cli vgpu rm --gone", "nvc-cli vgpu rm --force f0000154")
@click.argument("names", metavar="[SLICE...]", nargs=-1)
@click.option("--gone", is_flag=True, help="Remove every slice without a process.")
@click.option(
    "--force", is_flag=True, help="Also one that runs: its limits stay, and cannot be changed any more."
)
@click.pass_context
def rm_command(ctx: click.Context, names: tuple[str, ...], gone: bool, force: bool) -> None:
    """Forget slices. Those of containers that are gone are also removed when new ones are made."""
    if bool(names) == gone:
        raise click.UsageError("want either SLICE or --gone")
    from nvc.vgpu import registry
    from nvc.vgpu.tenants import find

    kernel = _kernel()
    lock = registry.locked(kernel)
    try:
        if gone:
            removed = registry.prune(kernel, registry.base_directory())
            output.write("".join(f"{key}\n" for key in removed))
            return
        everybody = _everybody(ctx, kernel)
        chosen = [find(everybody, name) for name in names]
        for tenant in chosen:
            if tenant.alive and not force:
                raise InputError(
                    "remove slice", tenant.short, f"runs: process {tenant.pids[0]}", "use --force"
                )
        for tenant in chosen:
            registry.remove(tenant.entry)
    finally:
        os.close(lock)


@_command("top", "nvc-cli vgpu top", "nvc-cli vgpu top --once")
@click.option("--once", is_flag=True, help="Print it once and end.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.1, 3600), metavar="SECONDS"
)
@click.pass_context
def top_command(ctx: click.Context, once: bool, interval: float) -> None:
    """Show devices, slices and their processes, again and again.

    Where standard output is no terminal, tables follow each other as plain text.
    """
    from nvc.vgpu.top import screen

    kernel = _kernel()
    terminal = posix.isatty(1)
    while True:
        text = screen(_everybody(ctx, kernel), time.time())
        output.write(f"{CLEAR}{text}" if terminal and not once else text)
        if once:
            return
        time.sleep(interval)
        if not terminal:
            output.write("\n")


@_command(
    "run",
    "nvc-cli vgpu run --memory 10GiB -- python3 train.py",
    "nvc-cli vgpu run --device 0,1 --memory 25% --user alice -- nvidia-smi",
    ignore_unknown_options=True,
)
@click.option("--memory", required=True, metavar="SIZE[,...]", help="10GiB or 25%, for all devices or each.")
@click.option(
    "--device", "devices", multiple=True, metavar="ID", help="Devices, as for configure. Default: all."
)
@click.option("--user", default="", metavar="UID[:GID]", help="Run the program as this user.")
@_sharing
@click.argument("words", metavar="-- PROGRAM [ARG...]", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run_command(
    ctx: click.Context, /, devices: tuple[str, ...], user: str, words: tuple[str, ...], **given: Any
) -> None:
    """Run a program with a slice, without a container. It ends when this command is killed.

    It gets the environment and the directory of the caller, but can no longer gain rights (no_new_privs), and open
    descriptors other than the standard ones are closed. The driver's other libraries stay reachable: what they take
    (OpenCL, graphics, video) is not counted.
    """
    from nvc.discovery import discover
    from nvc.vgpu.run import Program, run

    wanted = _wanted(given)
    uid, gid = arguments.user(user) if user else (-1, -1)
    environment = callers_environment()
    selectors = tuple(item for value in devices for item in value.split(",") if item)
    kernel, options = LinuxKernel(), ctx.obj["options"]
    facts = discover(kernel, options)
    output.warn(program_of(ctx), facts.warnings)
    program = Program(words, environment, uid, gid, options.timeout)
    sys.stdout.flush()
    ctx.exit(run(kernel, facts, selectors, wanted, program))


@_command("calibrate", "nvc-cli vgpu calibrate", "nvc-cli vgpu calibrate --device 0 --format json")
@click.option(
    "--device", "devices", multiple=True, metavar="ID", help="Devices, as for configure. Default: all."
)
@FORMAT
@click.pass_context
def calibrate_command(ctx: click.Context, devices: tuple[str, ...], form: str) -> None:
    """Measure what a context takes of each kind of device, and keep it for slices to come.

    Do this on the host once after each change of the driver. Containers that run keep what was known before.
    """
    from nvc.discovery import discover
    from nvc.request import Request, SliceRequest
    from nvc.selection import select
    from nvc.vgpu import calibration
    from nvc.vgpu.calibrate import calibrate

    selectors = tuple(item for value in devices for item in value.split(",") if item) or ("all",)
    facts = discover(LinuxKernel(), ctx.obj["options"])
    measured = calibrate(facts, select(facts, Request(devices=selectors)), SliceRequest())
    calibration.store(measured)
    if form == "json":
        kept = [{name: getattr(one, name) for name in one._fields} for one in measured]
        output.write(output.json_text({"measurements": kept}))
        return
    from nvc.vgpu.top import aligned

    rows: list[tuple[str, ...]] = [("DRIVER", "CONTEXT MiB", "MODULE MiB", "DEVICE")]
    for one in measured:
        part = f", MIG device of {one.memory} MiB" if one.memory else ""
        rows.append((one.driver, str(one.context >> 20), str(one.module >> 20), f"{one.device}{part}"))
    output.write(output.emphasised(aligned(rows)))


@_command("check", "nvc-cli vgpu check", "nvc-cli vgpu check 4242", "nvc-cli vgpu check --all")
@click.argument("names", metavar="[PID|SLICE...]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every process of every slice.")
@FORMAT
@click.pass_context
def check_command(ctx: click.Context, names: tuple[str, ...], everything: bool, form: str) -> None:
    """Prove that the shim is active in processes, by what they have mapped; name what it does not cover.

    Without an argument, try what a program that is started here would get. The exit code is 1 where something is
    not covered.
    """
    if names and everything:
        raise click.UsageError("want either processes or --all")
    environment = callers_environment()
    kernel = _kernel()
    from nvc.vgpu.check import check_loading
    from nvc.vgpu.survey import Survey, survey

    if names or everything:
        found = survey(kernel, _everybody(ctx, kernel), names)
    else:
        found = Survey((check_loading(kernel, environment),))
    output.write(output.json_text(found.document()) if form == "json" else found.text())
    if not found.covered:
        ctx.exit(1)
