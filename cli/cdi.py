"""`nvc-cli cdi`: specifications of the Container Device Interface, for engines that take devices by name."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from nvc.base.errors import InputError, counted
from nvc.base.files import closing
from nvc.frontends.cdi.document import NONE, STRATEGIES, DocumentOptions
from nvc.frontends.cdi.generate import generate, installed_hook, slicing_of
from nvc.frontends.cdi.hookspec import COMPAT, NAMES
from nvc.frontends.cdi.names import class_problem, vendor_problem
from nvc.frontends.cdi.refresh import refresh, remove
from nvc.frontends.cdi.sliced import CLASS
from nvc.frontends.cdi.store import (
    DIRECTORIES,
    CdiError,
    check_conflicts,
    open_directory,
    parse_document,
    read_bytes,
    split_path,
    text_of,
    write_in,
)
from nvc.frontends.cdi.transform import transform_root
from nvc.frontends.cdi.validate import problems
from nvc.kernel import LinuxKernel, privileges
from nvc.model.facts import CAPABILITIES, HostFacts
from nvc.model.request import DriverOptions, Request
from nvc.request.config import load as load_config
from nvc_cli import arguments, completion, output
from nvc_cli.cdi_inspect import list_command, validate_command
from nvc_cli.main import CONTEXT, Commands, Seconds, examples, flag, program_of, value, values

FORMATS = ("json", "yaml")
#: Everything but 32-bit libraries, which few hosts have and few images can use.
DEFAULT_CAPABILITIES = ",".join(name for name in CAPABILITIES if name != "compat32")


@click.group(cls=Commands, **examples(
    "nvc-cli cdi generate --output /etc/cdi/nvidia.yaml", "nvc-cli cdi list",
    "podman run --device nvidia.com/gpu=all IMAGE nvidia-smi -L",
))
def cdi() -> None:
    """Describe GPUs in files that engines read (Container Device Interface).

    Containers then ask for a device by name, such as nvidia.com/gpu=0, and the engine does the rest.
    """


def _file(_: click.Context, __: click.Parameter, path: str) -> str:
    """The value of --output. Whoever writes `-o json` means the form, as other commands have it."""
    if path in ("json", "yaml"):
        hint = f"write --format {path}, or -o ./{path} for a file of that name"
        raise InputError("--output", path, "is the file to write, not its format", hint)
    return path


_OUTPUT = click.option(
    "--output", "-o", default="-", metavar="FILE", callback=_file, help="Default: standard output."
)


def _making(command: Callable[..., None]) -> Callable[..., None]:
    """The options of what makes a specification, in the order of the help."""
    for option in reversed((
        click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by suffix, else json."),
        click.option(
            "--device-name-strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES),
            help="Names of devices; repeatable. Default: index and uuid.",
        ),
        value("--vendor", "NAME", "First part of the device names.", default="nvidia.com"),
        value("--class", "device_class", "NAME", "Second part of the device names.", default="gpu"),
        values("--device-id", "devices", "ID",
               "Only these: index, UUID, PCI bus id, GPU:MIG index; repeatable. `none`: a device without a "
               "GPU. Default: all.", shell_complete=completion.devices),
        flag("--no-all-device", "No device named `all`."),
        value("--hook-path", "--nvidia-cdi-hook-path", "hook_path", "PATH",
              "The program that the hooks call. Default: nvc-cdi-hook of this installation."),
        value("--capabilities", "LIST", "Driver capabilities for containers; also compat32, or all.",
              default=DEFAULT_CAPABILITIES),
        values("--require", "requirements", "EXPR",
               "Refuse unless the host meets EXPR, such as `cuda>=12.4`; repeatable."),
        values("--disable-hook", "disabled", "HOOK", f"Omit a hook: {', '.join(NAMES)} or all; repeatable.",
               type=click.Choice((*NAMES, "all"))),
        values("--library-directory", "libraries", "PATH",
               "The libraries' directory in the driver root, if the loader does not find them."),
        flag("--additional-gids", "Add containers to the groups of restricted device nodes; needs CDI 0.7.0."),
    )):  # fmt: skip
        command = option(command)
    return command


@cdi.command("generate", **examples(
    "nvc-cli cdi generate", "nvc-cli cdi generate --device-name-strategy uuid --format yaml",
    "nvc-cli cdi generate --slices --output /etc/cdi/slices.yaml",
    "nvc-cli cdi generate --device-id 0 --capabilities compute,utility",
))
@_OUTPUT
@flag("--slices", "Slices, in the sizes of [[nvc.vgpu]] in config.toml. The default class is then vgpu.")
@_making
@click.pass_context
def generate_command(ctx: click.Context, /, output: str, slices: bool, **given: Any) -> None:
    """Write the CDI specification of this host's devices.

    It uses the lowest version of the format that can express it. A file is replaced atomically, and never by a
    specification without devices.
    """
    form = form_of(given["form"], output)
    options, request, how = asked(ctx, given)
    slicing = slicing_of(load_config()) if slices else None
    if slices and slicing is None:
        raise InputError("--slices", cause="the configuration has no [[nvc.vgpu]]", hint="see docs/vgpu.md")
    if slices and ctx.get_parameter_source("device_class") is ParameterSource.DEFAULT:
        how = how.replace(device_class=CLASS)
    place = None if output == "-" else split_path(output)
    privileges.reduce("info", options.load_kmods)
    document, facts = generate(LinuxKernel(), options, request, how, slicing)
    tell(ctx, facts)
    put(document, form, place, check=True)


@cdi.command("refresh", **examples(
    "nvc-cli cdi refresh", "nvc-cli cdi refresh --output-dir /etc/cdi --wait 60",
))
@value("--output-dir", "PATH", "Directory to update.", default=DIRECTORIES[1])
@value("--wait", "SECONDS", "Keep retrying for up to SECONDS until the driver is ready.", default=0.0,
       type=Seconds(0, 3600))  # fmt: skip
@_making
@click.pass_context
def refresh_command(ctx: click.Context, /, output_dir: str, wait: float, **given: Any) -> None:
    """Update the specification in a directory if it is out of date.

    If config.toml defines sizes of slices, the specification of class vgpu is updated too; otherwise it is
    removed. nvc-cdi-refresh.service calls this at boot and when the driver changes.
    """
    if not output_dir.startswith("/"):
        raise InputError("--output-dir", output_dir, "want an absolute path")
    options, request, how = asked(ctx, given)
    both = how.device_class != CLASS
    slicing = slicing_of(load_config()) if both else None
    privileges.reduce("info", options.load_kmods)
    kernel, directory, form = LinuxKernel(), output_dir.rstrip("/"), given["form"] or "json"
    done = [refresh(kernel, options, request, how, directory, form, wait)]
    output.warn(program_of(ctx), done[0].warnings)
    how = how.replace(device_class=CLASS)
    if slicing is not None:
        done.append(refresh(kernel, options, request, how, directory, form, 0, slicing))
    elif both and (gone := remove(kernel, how, directory, form)):
        output.write(f"{gone}: removed\n")
    for file in done:
        what = "written" if file.changed else "unchanged"
        output.write(f"{file.path}: {what}, {counted(file.devices, 'device')}\n")


cdi.add_command(list_command)
cdi.add_command(validate_command)


@cdi.group("transform", cls=Commands, context_settings=CONTEXT)
def transform_group() -> None:
    """Change a specification."""


@transform_group.command("root", **examples("nvc-cli cdi generate | nvc-cli cdi transform root --to /host"))
@value("--from", "old", "PATH", "The current root of the paths.", default="/")
@click.option("--to", "new", required=True, metavar="PATH", help="Their new root.")
@click.option("--input", "source", default="-", metavar="FILE", help="Default: standard input.")
@_OUTPUT
@click.option(
    "--relative-to", default="host", show_default=True, type=click.Choice(("host", "container")),
    help="Change paths on the host (sources) or in the container.",
)  # fmt: skip
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by suffix, else json.")
def root_command(old: str, new: str, source: str, output: str, relative_to: str, form: str | None) -> None:
    """Replace the root of the paths in a specification."""
    place = None if output == "-" else split_path(output)
    document = specification(source)
    put(transform_root(document, old, new, relative_to), form_of(form, output), place, check=False)


def specification(source: str) -> dict[str, Any]:
    """The valid document in a file, or in standard input (`-`). Raises CdiError."""
    path = "standard input" if source == "-" else source
    document: dict[str, Any] = parse_document(read_bytes(path, stdin=source == "-"), path)
    wrong = problems(document)
    if wrong:
        raise CdiError("transform root", path, wrong[0], "nvc-cli cdi validate FILE lists everything")
    return document


def asked(ctx: click.Context, given: dict[str, Any]) -> tuple[DriverOptions, Request, DocumentOptions]:
    """What the options of `_making` ask for. Raises InputError."""
    for name, problem in (
        ("vendor", vendor_problem(given["vendor"])),
        ("class", class_problem(given["device_class"])),
    ):
        if problem:
            value = given["device_class" if name == "class" else name]
            raise InputError(f"--{name}", value, problem, "write one such as nvidia.com, or gpu for a class")
    hook = given["hook_path"] or installed_hook()
    if not hook.startswith("/") or "\0" in hook or hook.endswith("/"):
        raise InputError("--hook-path", hook, "want the absolute path of a program")
    for directory in given["libraries"]:
        if not directory.startswith("/") or "\0" in directory:
            raise InputError("--library-directory", directory, "want an absolute path in the driver root")
    options = arguments.driver_options(ctx.obj["globals"]).replace(library_directories=given["libraries"])
    devices = tuple(item for value in given["devices"] for item in value.split(",") if item)
    wanted = tuple(item for item in devices if item != NONE)
    request = Request(
        devices=wanted if devices else ("all",),
        capabilities=parse_capabilities(given["capabilities"]),
        requirements=given["requirements"],
    )
    disabled = NAMES if "all" in given["disabled"] else given["disabled"]
    if load_config().disable_cuda_compat_lib_hook:
        disabled = (*disabled, COMPAT)
    strategies = tuple(dict.fromkeys(given["strategies"])) or ("index", "uuid")
    how = DocumentOptions(
        hook, given["vendor"], given["device_class"], strategies, not given["no_all_device"], disabled,
        given["additional_gids"], NONE in devices,
    )  # fmt: skip
    return options, request, how


def parse_capabilities(text: str) -> tuple[str, ...]:
    """A comma-separated list of capabilities, or `all`, in their usual order. Raises InputError."""
    wanted = {item for item in text.split(",") if item}
    if "all" in wanted:
        return CAPABILITIES
    unknown = wanted.difference(CAPABILITIES)
    if unknown or not wanted:
        raise InputError(
            "--capabilities", min(unknown, default=text), f"want some of {', '.join(CAPABILITIES)}"
        )
    return tuple(name for name in CAPABILITIES if name in wanted)


def form_of(form: str | None, path: str, usual: str = "json") -> str:
    """The form of a file: as told, else by the suffix of its name."""
    named = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}.get(os.path.splitext(path)[1].lower())
    return form or named or usual


def put(document: dict[str, Any], form: str, place: tuple[str, str] | None, check: bool) -> None:
    """Write a document to a file, or to standard output where there is no `place`."""
    text = text_of(document, form)
    if place is None:
        output.write(text)
        return
    directory, name = place
    watched = posixpath.normpath(directory) in (*DIRECTORIES, "/run/cdi")
    with closing(open_directory(directory, create=watched, private=watched)) as fd:
        if check and watched:
            check_conflicts(fd, directory, name, document)
        path = posixpath.join(directory, name)
        write_in(fd, name, text.encode("utf-8", "surrogateescape"), path)


def tell(ctx: click.Context, facts: HostFacts) -> None:
    """Tell what is to know of the host that a document describes."""
    if facts.simulated:
        text = f"simulated driver in {facts.driver_root}: these GPUs are not real"
        output.note(program_of(ctx), text)
    output.warn(program_of(ctx), facts.warnings)
