"""`nvc-cli cdi`: specifications of the Container Device Interface, for engines that take devices by name."""

from __future__ import annotations

import os
import posixpath

import click
from click.core import ParameterSource

from nvc import privileges
from nvc.cdi.document import STRATEGIES, DocumentOptions
from nvc.cdi.generate import findings, generate, installed_hook, slicing_of
from nvc.cdi.hookspec import NAMES
from nvc.cdi.names import class_problem, vendor_problem
from nvc.cdi.refresh import refresh, remove
from nvc.cdi.sliced import CLASS
from nvc.cdi.store import (
    DIRECTORIES,
    CdiError,
    SpecFile,
    check_conflicts,
    open_directory,
    parse_document,
    read_bytes,
    read_directory,
    read_spec,
    split_path,
    text_of,
    write_in,
)
from nvc.cdi.transform import transform_root
from nvc.cdi.validate import problems
from nvc.config import load as load_config
from nvc.discovery import discover
from nvc.errors import InputError, NvcError
from nvc.kernel import LinuxKernel
from nvc.model import CAPABILITIES
from nvc.request import Request
from nvc_cli import completion, output
from nvc_cli.main import CONTEXT, Commands, Seconds, program_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nvc.model import HostFacts
    from nvc.request import DriverOptions

FORMATS = ("json", "yaml")
#: Everything but 32-bit libraries, which few hosts have and few images can use.
DEFAULT_CAPABILITIES = ",".join(name for name in CAPABILITIES if name != "compat32")


@click.group(
    cls=Commands,
    context_settings=CONTEXT,
    epilog="\b\nExamples:\n"
    "  nvc-cli cdi generate --output /etc/cdi/nvidia.yaml\n"
    "  nvc-cli cdi list\n"
    "  podman run --device nvidia.com/gpu=all IMAGE nvidia-smi -L",
)
def cdi() -> None:
    """Describe GPUs in files that engines read (Container Device Interface).

    Containers then ask for a device by name, such as nvidia.com/gpu=0, and the engine does the rest.
    """


def _making(command: Callable[..., None]) -> Callable[..., None]:
    """The options of what makes a specification, in the order of the help."""
    for option in reversed(
        (
            click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by suffix, else json."),
            click.option(
                "--device-name-strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES),
                help="Names of devices; repeatable. Default: index and uuid.",
            ),
            click.option("--vendor", default="nvidia.com", show_default=True, metavar="NAME"),
            click.option("--class", "device_class", default="gpu", show_default=True, metavar="NAME"),
            click.option(
                "--device-id", "devices", multiple=True, metavar="ID", shell_complete=completion.devices,
                help="Only these: index, UUID, PCI bus id, GPU:MIG index; repeatable. Default: all.",
            ),
            click.option("--no-all-device", is_flag=True, help="No device named `all`."),
            click.option(
                "--hook-path", "--nvidia-cdi-hook-path", "hook_path", default="", metavar="PATH",
                help="The program that the hooks call. Default: nvc-cdi-hook of this installation.",
            ),
            click.option(
                "--capabilities", default=DEFAULT_CAPABILITIES, show_default=True, metavar="LIST",
                help="What containers may do with a device; also compat32, or all.",
            ),
            click.option(
                "--require", "requirements", multiple=True, metavar="EXPR",
                help="Refuse unless the host meets EXPR, such as `cuda>=12.4`; repeatable.",
            ),
            click.option(
                "--disable-hook", "disabled", multiple=True, type=click.Choice((*NAMES, "all")),
                help="Leave a hook out; repeatable.",
            ),
            click.option(
                "--library-directory", "libraries", multiple=True, metavar="PATH",
                help="Where the driver's libraries are, in the driver root, if not where the loader looks.",
            ),
            click.option(
                "--additional-gids", is_flag=True,
                help="Give containers the groups of nodes that are not open to all; needs CDI 0.7.0.",
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@cdi.command(
    "generate",
    context_settings=CONTEXT,
    epilog="\b\nExamples:\n"
    "  nvc-cli cdi generate\n"
    "  nvc-cli cdi generate --output /etc/cdi/nvidia.yaml --device-name-strategy uuid\n"
    "  nvc-cli cdi generate --slices --output /etc/cdi/slices.yaml\n"
    "  nvc-cli cdi generate --device-id 0 --capabilities compute,utility --output /etc/cdi/one.json",
)
@click.option("--output", "-o", default="-", metavar="FILE", help="Default: standard output.")
@click.option(
    "--slices", is_flag=True,
    help="Slices of the devices, in the sizes of [[nvc.vgpu]] in config.toml; class vgpu unless one is named.",
)  # fmt: skip
@_making
@click.pass_context
def generate_command(ctx: click.Context, /, output: str, slices: bool, **given: Any) -> None:
    """Write the specification of this host's devices.

    The lowest version of the format is used that can express it. A file is replaced at once or not at all, and
    never by one without devices.
    """
    form = given["form"] or ("yaml" if output.endswith((".yaml", ".yml")) else "json")
    options, request, how = _asked(ctx, given)
    slicing = slicing_of(load_config()) if slices else None
    if slices and slicing is None:
        raise InputError("--slices", cause="the configuration has no [[nvc.vgpu]]", hint="see docs/vgpu.md")
    if slices and ctx.get_parameter_source("device_class") is ParameterSource.DEFAULT:
        how = how.replace(device_class=CLASS)
    place = None if output == "-" else split_path(output)
    privileges.reduce("info", options.load_kmods)
    document, facts = generate(LinuxKernel(), options, request, how, slicing)
    _tell(ctx, facts)
    _put(document, form, place, check=True)


@cdi.command(
    "refresh",
    context_settings=CONTEXT,
    epilog="\b\nExamples:\n  nvc-cli cdi refresh\n  nvc-cli cdi refresh --output-dir /etc/cdi --wait 60",
)
@click.option("--output-dir", default=DIRECTORIES[1], show_default=True, metavar="PATH")
@click.option(
    "--wait", default=0.0, type=Seconds(0, 3600), metavar="SECONDS",
    help="Try again for so long while the driver is not ready.",
)  # fmt: skip
@_making
@click.pass_context
def refresh_command(ctx: click.Context, /, output_dir: str, wait: float, **given: Any) -> None:
    """Bring the specification in a directory up to date, if it is not.

    Where config.toml defines sizes of slices, that of class vgpu too; where it does not, one is removed.
    The systemd units in packaging/systemd call this at boot and when the driver changes.
    """
    if not output_dir.startswith("/"):
        raise InputError("--output-dir", output_dir, "want an absolute path")
    options, request, how = _asked(ctx, given)
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
        output.write(f"{file.path}: {what}, {file.devices} devices\n")


@cdi.command(
    "list",
    context_settings=CONTEXT,
    epilog="\b\nExamples:\n  nvc-cli cdi list\n  nvc-cli cdi list --format json",
)
@click.option(
    "--spec-dir", "directories", multiple=True, metavar="PATH",
    help=f"Directory of specifications; repeatable. Default: {' and '.join(DIRECTORIES)}.",
)  # fmt: skip
@click.option("--format", "form", default="text", show_default=True, type=click.Choice(("text", "json")))
@click.pass_context
def list_command(ctx: click.Context, directories: tuple[str, ...], form: str) -> None:
    """List the devices that engines know, one name a line.

    Later directories come before earlier ones. What is wrong is said on standard error: files that engines
    drop, names that two files claim, and specifications that no longer fit this host.
    """
    files = [read_directory(directory) for directory in directories or DIRECTORIES]
    facts = _facts(ctx, [file for level in files for file in level])
    known: dict[str, SpecFile] = {}
    warnings = []
    for level in files:
        here: dict[str, SpecFile] = {}
        twice: set[str] = set()
        for file in level:
            warnings += [f"{file.path}: {problem}" for problem in file.problems]
            for name in file.devices():
                if name in here:
                    twice.add(name)
                    warnings.append(f"{name}: in {here[name].path} and {file.path}, so engines know neither")
                here.setdefault(name, file)
        known.update(here)
        for name in twice:
            known.pop(name, None)
    for file in {file.path: file for file in known.values()}.values():
        warnings += [f"{file.path}: {finding}" for finding in findings(file.document, facts)]
    output.warn(program_of(ctx), tuple(warnings))
    if form == "json":
        devices = [{"name": name, "file": known[name].path} for name in sorted(known)]
        output.write(output.json_text({"devices": devices, "warnings": warnings}))
    else:
        output.write("".join(f"{name}\n" for name in sorted(known)))


@cdi.command(
    "validate", context_settings=CONTEXT, epilog="\b\nExample:\n  nvc-cli cdi validate /etc/cdi/nvidia.yaml"
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.pass_context
def validate_command(ctx: click.Context, files: tuple[str, ...]) -> None:
    """Check specifications by the rules of the engines, which drop a bad file without a word.

    Exit code 1 if engines would not load one. That one is stale, or names what is not there, is a warning.
    """
    read = [read_spec(path) for path in files]
    facts = _facts(ctx, read)
    wrong = 0
    for file in read:
        for problem in file.problems:
            output.say(program_of(ctx), f"{file.path}: {problem}")
        if file.problems:
            wrong += 1
            continue
        output.warn(
            program_of(ctx), tuple(f"{file.path}: {text}" for text in findings(file.document, facts))
        )
        devices = len(file.document["devices"])
        output.write(f"{file.path}: valid, {devices} devices, version {file.document['cdiVersion']}\n")
    if wrong:
        ctx.exit(1)


@cdi.group("transform", context_settings=CONTEXT)
def transform_group() -> None:
    """Change a specification."""


@transform_group.command(
    "root",
    context_settings=CONTEXT,
    epilog="\b\nExample:\n"
    "  nvc-cli cdi generate | nvc-cli cdi transform root --from / --to /host --relative-to host",
)
@click.option(
    "--from", "old", default="/", show_default=True, metavar="PATH", help="The root that paths have."
)
@click.option("--to", "new", required=True, metavar="PATH", help="The root that they get.")
@click.option("--input", "source", default="-", metavar="FILE", help="Default: standard input.")
@click.option("--output", "-o", default="-", metavar="FILE", help="Default: standard output.")
@click.option(
    "--relative-to", default="host", show_default=True, type=click.Choice(("host", "container")),
    help="Which side's paths: sources on the host, or places in the container.",
)  # fmt: skip
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: by suffix, else json.")
def root_command(old: str, new: str, source: str, output: str, relative_to: str, form: str | None) -> None:
    """Move the paths of a specification below another root."""
    place = None if output == "-" else split_path(output)
    path = "standard input" if source == "-" else source
    document = parse_document(read_bytes(path, stdin=source == "-"), path)
    wrong = problems(document)
    if wrong:
        raise CdiError("transform root", path, wrong[0], "nvc-cli cdi validate FILE lists everything")
    form = form or ("yaml" if output.endswith((".yaml", ".yml")) else "json")
    _put(transform_root(document, old, new, relative_to), form, place, check=False)


def _asked(ctx: click.Context, given: dict[str, Any]) -> tuple[DriverOptions, Request, DocumentOptions]:
    """What the options of `_making` ask for. Raises InputError."""
    for name, problem in (
        ("vendor", vendor_problem(given["vendor"])),
        ("class", class_problem(given["device_class"])),
    ):
        if problem:
            raise InputError(f"--{name}", given["device_class" if name == "class" else name], problem)
    hook = given["hook_path"] or installed_hook()
    if not hook.startswith("/") or "\0" in hook or hook.endswith("/"):
        raise InputError("--hook-path", hook, "want the absolute path of a program")
    for directory in given["libraries"]:
        if not directory.startswith("/") or "\0" in directory:
            raise InputError("--library-directory", directory, "want an absolute path in the driver root")
    options = _driver_options(ctx).replace(library_directories=given["libraries"])
    devices = tuple(item for value in given["devices"] for item in value.split(",") if item)
    request = Request(
        devices=devices or ("all",),
        capabilities=parse_capabilities(given["capabilities"]),
        requirements=given["requirements"],
    )
    disabled = NAMES if "all" in given["disabled"] else given["disabled"]
    strategies = tuple(dict.fromkeys(given["strategies"])) or ("index", "uuid")
    how = DocumentOptions(
        hook, given["vendor"], given["device_class"], strategies, not given["no_all_device"], disabled,
        given["additional_gids"],
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


def _put(document: dict[str, Any], form: str, place: tuple[str, str] | None, check: bool) -> None:
    """Write a document to a file, or to standard output where there is no `place`."""
    text = text_of(document, form)
    if place is None:
        output.write(text)
        return
    directory, name = place
    watched = posixpath.normpath(directory) in (*DIRECTORIES, "/run/cdi")
    fd = open_directory(directory, create=watched, private=watched)
    try:
        if check and watched:
            check_conflicts(fd, directory, name, document)
        path = posixpath.join(directory, name)
        write_in(fd, name, text.encode("utf-8", "surrogateescape"), path)
    finally:
        os.close(fd)


def _driver_options(ctx: click.Context) -> DriverOptions:
    """The global options; a root or loader cache that they do not name is the configuration's, as for hooks."""
    options: DriverOptions = ctx.obj["options"]
    given, config = ctx.obj["globals"], load_config()
    if "root" not in given:
        options = options.replace(root=config.root)
    if "ldcache" not in given:
        options = options.replace(ldcache=config.ldcache)
    return options


def _facts(ctx: click.Context, files: list[SpecFile]) -> HostFacts | None:
    """The host's facts, if one of the files can be compared with them; None where no driver is found."""
    if not any(file.document for file in files):
        return None
    options = _driver_options(ctx)
    try:
        return discover(LinuxKernel(), options)
    except NvcError as error:
        output.warn(program_of(ctx), (f"cannot tell whether specifications are up to date: {error}",))
        return None


def _tell(ctx: click.Context, facts: HostFacts) -> None:
    if facts.simulated:
        text = f"simulated driver in {facts.driver_root}: none of these GPUs exists"
        output.say(program_of(ctx), text)
    output.warn(program_of(ctx), facts.warnings)
