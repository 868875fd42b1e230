"""`nvc-cli vgpu`: the group of its commands, and what they have in common."""

from __future__ import annotations

import posix
from collections.abc import Callable
from typing import Any

import click

from nvc.base.errors import InputError, PermissionDenied
from nvc.kernel import Kernel, LinuxKernel, privileges
from nvc.model.request import Field, SliceRequest, fields_by
from nvc.model.slices.isolation import ISOLATIONS
from nvc.model.slices.policy import CHOICES, POLICIES
from nvc.slices.store.status import SliceStatus
from nvc_cli import arguments, completion, output
from nvc_cli.main import CONTEXT, Commands, examples, flag, format_option, program_of, value

FORMAT = format_option("table")


@click.group(cls=Commands, **examples(
    "nvc-cli vgpu run --memory 10GiB --cores 25 -- python3 train.py", "nvc-cli vgpu ls",
    "nvc-cli vgpu set web --memory 20GiB --cores 50", "nvc-cli vgpu policy 0 weight",
    "nvc-cli vgpu top",
))
def vgpu() -> None:
    """Run programs in slices of a GPU's memory and time, and manage slices.

    Containers get slices by environment variables, CDI devices or `configure --vgpu-memory`.
    Details: docs/vgpu.md; packages install it as /usr/share/doc/nvc/vgpu.md.
    """


#: In the order in which they are used.
vgpu.order = (
    "run", "ls", "top", "set", "show", "pause", "suspend", "resume", "policy", "report", "trace", "advise", "rm",
)  # fmt: skip


def command(name: str, *lines: str, **more: Any) -> Callable[[Callable[..., None]], click.Command]:
    """A command of the group, whose help ends with examples."""
    return vgpu.command(name, **{**examples(*lines), "context_settings": {**CONTEXT, **more}})


def slice_options(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options that say what of a device somebody gets, as `configure` has them."""
    offers = {"policy": completion.one_of(*POLICIES), "isolation": completion.one_of(*ISOLATIONS)}

    def with_options(function: Callable[..., None]) -> Callable[..., None]:
        for row in reversed(fields_by(command)):
            function = value(option_of(row), row.metavar, f"{row.text.format(policies=CHOICES)}.", default=None,
                             shell_complete=offers.get(row.name))(function)  # fmt: skip
        return function

    return with_options


def option_of(row: Field) -> str:
    """The option of a field, as commands of the group have it."""
    return f"--{row.option.removeprefix('vgpu-')}"


ALL = flag("--all", "-a", "everything", "Also slices that have ended.")

def wanted_slice(given: dict[str, Any]) -> SliceRequest | None:
    """What those options ask for."""
    return arguments.slice_request({name: value for name, value in given.items() if value is not None}, "")


def selectors_of(given: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The selectors in values of an option; none where it was not given. Raises InputError for one that is empty.

    An empty one is a variable of a script that was not set, and that shall not mean every device.
    """
    found = tuple(item for value in given for item in value.split(",") if item)
    if given and not found:
        raise InputError(name, cause="names no device", hint="omit it for all devices")
    return found


def everybody(ctx: click.Context, kernel: Kernel) -> tuple[SliceStatus, ...]:
    """Every slice; what cannot be read is a warning."""
    from nvc.discovery.containers.lookup import Lookup
    from nvc.slices.store.status import statuses, with_enforcement

    names = ctx.obj.setdefault("names", Lookup())  # `top` lists them again and again
    found, warnings = statuses(kernel, names)
    output.warn(program_of(ctx), warnings)
    return with_enforcement(found)


def shown(found: tuple[SliceStatus, ...], everything: bool) -> tuple[SliceStatus, ...]:
    """The slices to list: with --all every one, otherwise those that live."""
    return tuple(tenant for tenant in found if everything or tenant.alive)


def operator_kernel() -> Kernel:
    """The kernel for a command that looks at slices of others, or changes them: rights that it needs, no more.

    Raises PermissionDenied for anybody but root.
    """
    if posix.geteuid() != 0:
        raise PermissionDenied("look at slices", cause="only root can")
    return reduced_kernel()


def reduced_kernel() -> Kernel:
    """The kernel for a command that any user may run, with no more rights than `configure` has."""
    privileges.reduce("configure")
    return LinuxKernel()
