"""`nvc-cli vgpu set`, `pause`, `resume`, `policy` and `rm`: slices as the operator wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from nvc.base.files import closing
from nvc.model.request import fields_by
from nvc.model.slices.policy import POLICIES, policy_of
from nvc.slices.policy import policies
from nvc.slices.store.status import SliceStatus
from nvc_cli import arguments, completion, output
from nvc_cli.main import flag, program_of, value, values
from nvc_cli.vgpu_group import (
    FORMAT,
    command,
    everybody,
    operator_kernel,
    option_of,
    selectors_of,
    slice_options,
    wanted_slice,
)

PATIENCE = 600.0  # seconds: 80 GiB take 40
DEVICE = values("--device", "devices", "ID", "Only this device: index or UUID; repeatable.",
                shell_complete=completion.devices_of_slice)  # fmt: skip


@command(
    "set",
    "nvc-cli vgpu set web --memory 20GiB",
    "nvc-cli vgpu set web --cores 50",
    "nvc-cli vgpu set 4242 --device 1 --memory 50% --weight 4",
)
@click.argument("slice_name", metavar="SLICE", shell_complete=completion.slices)
@flag("--unlimited", "Remove the memory limit.")
@DEVICE
@slice_options("set")
@click.pass_context
def set_command(
    ctx: click.Context, /, slice_name: str, unlimited: bool, devices: tuple[str, ...], **given: Any
) -> None:
    """Change the limits of a slice while its processes run.

    A memory limit below what is in use frees nothing and stops nobody: new allocations fail until less is in
    use. A cap or a weight without a policy selects the policy that enforces it, unless somebody chose a policy for
    the slice.
    """
    wanted = wanted_slice(given)
    if unlimited and given["memory"] is not None:
        raise click.UsageError("want either --memory or --unlimited")
    if not unlimited and wanted is None:
        memory, *others, last = map(option_of, fields_by("set"))
        raise click.UsageError(f"want {memory} or --unlimited, {', '.join(others)} or {last}")
    from nvc.model.request import SliceRequest
    from nvc.model.slices.isolation import KERNEL
    from nvc.slices.admin.change import set_limits
    from nvc.slices.store.status import find, gone

    kernel = operator_kernel()
    tenant = find(everybody(ctx, kernel), slice_name)
    facts = None
    if tenant.entry.isolation == KERNEL and (unlimited or given["memory"] is not None):
        from nvc.discovery import discover

        facts = discover(kernel, arguments.driver_options(ctx.obj["globals"]))
    told = set_limits(kernel, tenant, wanted or SliceRequest(), devices, unlimited, facts)
    output.warn(program_of(ctx), (*told, *gone(tenant)))


def _pausing(name: str, summary: str) -> click.Command:
    @command(name, f"nvc-cli vgpu {name} web", f"nvc-cli vgpu {name} 4242 --device 1")
    @click.argument("slice_name", metavar="SLICE", shell_complete=completion.slices)
    @DEVICE
    @click.pass_context
    def pausing(ctx: click.Context, slice_name: str, devices: tuple[str, ...]) -> None:
        from nvc.slices.admin.change import pause
        from nvc.slices.store.status import find, gone

        kernel = operator_kernel()
        tenant = find(everybody(ctx, kernel), slice_name)
        if tenant.suspension is not None:
            _bring_back(tenant, name, devices)
        pause(kernel, tenant, devices, name == "pause")
        output.warn(program_of(ctx), gone(tenant))

    pausing.help = summary
    return pausing


def _bring_back(tenant: SliceStatus, name: str, devices: tuple[str, ...]) -> None:
    """Resume a slice that is suspended. Raises InputError where that is not what is asked for."""
    from nvc.base.errors import InputError
    from nvc.slices.client.suspend import resume

    if name == "pause":
        raise InputError("pause slice", tenant.name, f"it is {tenant.state}", "`resume` brings it back")
    if devices:
        raise InputError("--device", devices[0], "a suspended slice comes back as a whole", "leave --device out")
    with _telling(tenant.name) as tell:
        resume(tenant.entry.key, tenant.name, PATIENCE, tell)


@contextmanager
def _telling(name: str) -> Iterator[Callable[[float, str], None]]:
    """What tells, while it takes long, that a slice is on its way."""
    line = output.Line()

    def tell(at: float, state: str) -> None:
        if at > output.LONG:
            line.tell(at, f"slice {name} is {state}: {at:.0f} s")

    try:
        yield tell
    finally:
        line.end()


@command("suspend", "nvc-cli vgpu suspend web", "nvc-cli vgpu resume web")
@click.argument("slice_name", metavar="SLICE", shell_complete=completion.slices)
@click.pass_context
def suspend_command(ctx: click.Context, slice_name: str) -> None:
    """Take a slice's memory off its GPUs, into the host's, until it is resumed.

    Its processes wait in their next call of the driver. nvcd does it, by the driver's checkpoints (driver 570 or
    newer). If that fails the slice runs on.
    """
    from nvc.slices.client.suspend import suspend
    from nvc.slices.store.status import find

    tenant = find(everybody(ctx, operator_kernel()), slice_name)
    with _telling(tenant.name) as tell:
        suspend(tenant.entry.key, tenant.name, PATIENCE, tell)


_pausing("pause", "Stop a slice's kernels. Where the shim keeps time, only new launches wait.")
_pausing("resume", "Let a slice go on that is paused or suspended.")


def _settings(function: Callable[..., None]) -> Callable[..., None]:
    for row in reversed(policies.SETTINGS):
        function = value(row.option, row.field, row.metavar, row.text, default=None)(function)
    return function


@command(
    "policy",
    "nvc-cli vgpu policy",
    "nvc-cli vgpu policy 0 weight --total-weight 16",
    "nvc-cli vgpu policy all --max-instances 8 --quantum 20ms",
    "nvc-cli vgpu policy 0 --reset",
)
@click.argument("gpu", metavar="[GPU", default="all", shell_complete=completion.devices)
@click.argument(
    "name",
    metavar=f"[NAME|0-{len(POLICIES) - 1}]]",
    default=None,
    required=False,
    shell_complete=completion.one_of(*POLICIES, "none"),
)
@_settings
@flag("--reset", "Remove the device policy; slices use their own.")
@FORMAT
@click.pass_context
def policy_command(
    ctx: click.Context, /, gpu: str, name: str | None, reset: bool, form: str, **given: str | None
) -> None:
    """Show or set a GPU's policy, for running and future slices.

    GPU is anything that `configure --device` accepts, also a MIG device. A device policy overrides the policies of
    slices; `none` leaves the choice to them. The setting lasts until the host restarts.
    """
    from nvc.discovery import discover
    from nvc.model.slices.time_settings import parse_policy
    from nvc.slices.admin.device_policy import devices_named, set_device_policy, shared_devices
    from nvc.slices.client.mps import SHARING, check_program

    changes: dict[str, int] = {}
    if name is not None:
        changes["policy"] = policies.NONE if name == "none" else parse_policy("NAME", name).value
    for row in policies.SETTINGS:
        if (text := given[row.field]) is not None:
            changes[row.field] = row.parse(row.option, text)
    if reset and changes:
        raise click.UsageError("want either --reset or something to set")
    if (reset or changes) and ctx.get_parameter_source("form") is ParameterSource.COMMANDLINE:
        raise click.UsageError("want either --format or something to set")
    kernel = operator_kernel()
    facts = discover(kernel, arguments.driver_options(ctx.obj["globals"]))
    selectors = selectors_of((gpu,), "GPU")
    if reset or changes:
        uuids = tuple(device.uuid for device in devices_named(facts, selectors))
        asked = changes.get("policy", policies.NONE)
        if asked != policies.NONE and policy_of(asked).server:
            check_program(facts, SHARING)
        told = set_device_policy(kernel, uuids, None if reset else lambda old: old.replace(**changes))
        output.warn(program_of(ctx), told)
        return
    found = shared_devices(kernel, facts, selectors)
    from nvc.slices.show.tables import policies_table

    devices = [device.document() for device in found]
    output.show(form, lambda: {"devices": devices}, lambda width: policies_table(found, width))


@command("rm", "nvc-cli vgpu rm --gone", "nvc-cli vgpu rm web")
@click.argument("names", metavar="[SLICE...]", nargs=-1, shell_complete=completion.gone_slices)
@flag("--gone", "Remove every slice that has ended.")
@flag("--force", "Also slices that may run, though no process is seen.")
@click.pass_context
def rm_command(ctx: click.Context, names: tuple[str, ...], gone: bool, force: bool) -> None:
    """Remove records of slices that have ended: those that you name, or all of them with --gone.

    Starting containers does that too, from time to time. A slice that runs is never removed: end its container or
    program first.
    """
    if bool(names) == gone:
        raise click.UsageError("want either SLICE or --gone")
    from nvc.discovery.containers.lookup import Lookup
    from nvc.slices.admin.removal import check_ended
    from nvc.slices.store import registry
    from nvc.slices.store.liveness import Life
    from nvc.slices.store.snapshot import snapshot
    from nvc.slices.store.status import container_of, find, statuses_of, warnings_of

    kernel = operator_kernel()
    with closing(registry.locked(kernel)):
        known = snapshot(kernel, locked=True, processes=True)
        all_slices = statuses_of(kernel, known)
        if gone:
            names_of = {tenant.entry.key: tenant.name for tenant in all_slices}
            removed = registry.prune(kernel, registry.base_directory())
            output.write("".join(f"{names_of.get(key, key)}\n" for key in removed))
            return
        output.warn(program_of(ctx), warnings_of(known))
        broken = {one.entry.key: one for one in known.broken}
        removed_too = [broken[name].entry for name in names if name in broken]
        chosen = [find(all_slices, name) for name in names if name not in broken]
        for entry in removed_too:
            check_ended(entry.key, entry, container_of(entry, Lookup()), broken[entry.key].life, force)
        for tenant in chosen:
            life = Life(tenant.pids, tenant.doubt) if tenant.alive else None
            check_ended(tenant.name, tenant.entry, tenant.container, life, force)
        for entry in (*removed_too, *(tenant.entry for tenant in chosen)):
            registry.remove(entry.directory)
