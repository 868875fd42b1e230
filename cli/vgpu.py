"""`nvc-cli vgpu`: programs that are given a slice, and what a slice rests on."""

from __future__ import annotations

import sys
from typing import Any

import click

from nvc.kernel import LinuxKernel
from nvc.model.request import fields_by
from nvc_cli import (
    arguments,
    completion,
    output,
    vgpu_advise,
    vgpu_control,
    vgpu_report,
    vgpu_trace,
    vgpu_watch,
)
from nvc_cli.caller_environment import callers_environment
from nvc_cli.main import flag, program_of, value, values
from nvc_cli.vgpu_group import (
    FORMAT,
    command,
    everybody,
    operator_kernel,
    option_of,
    reduced_kernel,
    selectors_of,
    slice_options,
    vgpu,
    wanted_slice,
)

#: The group, and modules that add commands to it.
__all__ = ["vgpu", "vgpu_advise", "vgpu_control", "vgpu_report", "vgpu_trace", "vgpu_watch"]


@command(
    "run",
    "nvc-cli vgpu run --memory 10GiB --cores 25 -- python3 train.py",
    "nvc-cli vgpu run --device 0,1 --memory 25% --user alice -- nvidia-smi",
    allow_interspersed_args=False,  # what follows the program is the program's
)
@values("--device", "devices", "ID", "Devices, as for configure. Default: all.", shell_complete=completion.devices)
@value("--user", "UID[:GID]", "Run the program as this user.", default=None)
@value("--name", "NAME", "Name of the slice. Default: the program's.", default=None)
@slice_options("run")
@click.argument(
    "words", metavar="-- PROGRAM [ARG...]", nargs=-1, required=True, type=click.UNPROCESSED,
    shell_complete=completion.programs,
)  # fmt: skip
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    devices: tuple[str, ...],
    user: str | None,
    name: str | None,
    words: tuple[str, ...],
    **given: Any,
) -> None:
    """Run a program in a slice, without a container. It is killed when this command is.

    It gets the environment and the directory of the caller, but cannot gain privileges (no_new_privs); descriptors
    other than the standard ones are closed. Other libraries of the driver (OpenCL, graphics, video) stay
    usable; their memory is not counted.
    """
    from nvc.base.errors import SourceChanged
    from nvc.base.program import show_as
    from nvc.discovery import discover, inventory
    from nvc.slices.make.run import Command, run

    wanted = wanted_slice(given)
    if wanted is None:
        *others, last = (option_of(row) for row in fields_by("run") if row.name not in ("reserved", "period"))
        raise click.UsageError(f"want {', '.join(others)} or {last}")
    uid, gid = (-1, -1) if user is None else arguments.user(user)
    environment = callers_environment()
    selectors = selectors_of(devices, "--device")
    kernel, options = LinuxKernel(), arguments.driver_options(ctx.obj["globals"])
    facts = discover(kernel, options)
    output.warn(program_of(ctx), facts.warnings)
    program = Command(words, environment, uid, gid, options.timeout, name)
    sys.stdout.flush()
    show_as(program_of(ctx), sys.argv[1:])

    def warn(told: tuple[str, ...]) -> None:
        output.warn(program_of(ctx), told)

    try:
        code = run(kernel, facts, selectors, wanted, program, warn)
    except SourceChanged:  # before the program was started
        inventory.forget(options)
        code = run(kernel, discover(kernel, options), selectors, wanted, program, warn)
    ctx.exit(code)


@command("calibrate", "nvc-cli vgpu calibrate", "nvc-cli vgpu calibrate --device 0 --format json")
@values("--device", "devices", "ID", "Devices, as for configure. Default: all.", shell_complete=completion.devices)
@FORMAT
@click.pass_context
def calibrate_command(ctx: click.Context, devices: tuple[str, ...], form: str) -> None:
    """Measure what a context takes on each kind of device, and store it for future slices.

    Run this on the host after each driver upgrade, while nobody uses the devices. Running containers keep the old
    values.
    """
    from nvc.discovery import discover
    from nvc.model.request import Request, SliceRequest
    from nvc.model.selection import select
    from nvc.slices.make import calibration
    from nvc.slices.make.calibrate import calibrate

    selectors = selectors_of(devices, "--device") or ("all",)
    facts = discover(LinuxKernel(), arguments.driver_options(ctx.obj["globals"]))
    measured = calibrate(facts, select(facts, Request(devices=selectors)), SliceRequest())
    calibration.store(measured)
    from nvc.base.columns import fitted
    from nvc.slices.show.bars import short_size

    rows: list[tuple[str, ...]] = [("DRIVER", "CONTEXT", "MODULE", "MODEL")]
    for one in measured:
        part = f", MIG device of {one.memory} MiB" if one.memory else ""
        rows.append((one.driver, short_size(one.context), short_size(one.module), f"{one.device}{part}"))
    kept = [dict(zip(one._fields, one)) for one in measured]
    spare = ("MODULE", "DRIVER")
    output.show(
        form, lambda: {"measurements": kept}, lambda width: fitted(rows, width, spare, middle=("MODEL",))
    )


@command("check", "nvc-cli vgpu check", "nvc-cli vgpu check 4242", "nvc-cli vgpu check --all")
@click.argument("names", metavar="[PID|SLICE...]", nargs=-1, shell_complete=completion.slices)
@flag("--all", "everything", "Every process of every slice.")
@FORMAT
@click.pass_context
def check_command(ctx: click.Context, names: tuple[str, ...], everything: bool, form: str) -> None:
    """Check the memory maps of processes to confirm that the shim is loaded.

    Without an argument, check what a new program would load. Files that the shim does not cover are named; the
    exit code is then 1.
    """
    if names and everything:
        raise click.UsageError("want either processes or --all")
    environment = callers_environment()
    kernel = operator_kernel() if names or everything else reduced_kernel()
    from nvc.slices.admin.check import check_loading
    from nvc.slices.admin.coverage import Survey, survey

    if names or everything:
        found = survey(kernel, everybody(ctx, kernel), names)
    else:
        found = Survey((check_loading(kernel, environment),))
    output.write(found.text() if form == "table" else output.document_text(found.document(), form))
    if not found.covered:
        ctx.exit(1)
