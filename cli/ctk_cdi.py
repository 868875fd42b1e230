"""`nvidia-ctk cdi`: specifications with NVIDIA's options, made as `nvc-cli cdi` makes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import click

from nvc.base.errors import InputError
from nvc.discovery.devices.beside import IMEX, KINDS, MANAGEMENT
from nvc.frontends.cdi import beside
from nvc.frontends.cdi.document import NONE, STRATEGIES, DocumentOptions
from nvc.frontends.cdi.generate import generate
from nvc.frontends.cdi.hookspec import NAMES
from nvc.frontends.cdi.store import DIRECTORIES, split_path
from nvc.frontends.cdi.transform import transform_root
from nvc.kernel import LinuxKernel, privileges
from nvc.model.request import DriverOptions, Request
from nvc.request.config import load
from nvc_cli import completion, output
from nvc_cli.cdi import DEFAULT_CAPABILITIES, FORMATS, asked, form_of, put, specification, tell
from nvc_cli.cdi_inspect import list_command
from nvc_cli.ctk import Flags, Text, Words, debug, only
from nvc_cli.main import Commands, examples, flag, program_of, value, values

#: What is made: of GPUs, and of devices beside them; and modes that nvc has no answer for, with why.
MODES = ("auto", "nvml", "wsl", *KINDS, MANAGEMENT)
REFUSED = {
    "csv": "no driver of Tegra systems is supported",
    "mig-caps": "the devices of MIG instances come with --mode=nvml, and all of them with --mode=management",
}
#: What says something of GPUs alone.
_OF_GPUS = {
    "strategies": "device-name-strategy", "disabled": "disable-hook", "enabled": "enable-hook",
    "flags": "feature-flag", "libraries": "library-search-path", "ldconfig_path": "ldconfig-path",
}  # fmt: skip
#: Hooks that NVIDIA's specifications may have and nvc's never do: without them is what they are.
ABSENT = ("chmod", "create-soname-symlinks")
#: What a flag asks for holds already; or it names fields of the request, which it turns off; or it is refused.
HOLDS = {"disable-nvsandboxutils", "disable-multiple-csv-devices", "no-additional-gids-for-device-nodes"}
TURNS_OFF = {"disable-ipc-discoverer": ("persistenced", "fabricmanager")}
NOT_MADE = {
    "enable-coherent-annotations": "nvc writes no annotations: they need version 0.6.0 of the format",
    "enable-explicit-driver-libraries": "nvc adds all libraries of the driver that it knows anyway, and no others",
}
_GENERATE = "NVIDIA_CTK_CDI_GENERATE_"


@click.group(cls=Commands, **examples(
    "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "nvidia-ctk cdi list",
))
def cdi() -> None:
    """Describe GPUs in files that engines read (Container Device Interface)."""


def _refuse(option: str, why: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """What refuses an option, however it is given. Raises InputError."""

    def callback(_: click.Context, __: click.Parameter, given: Any) -> None:
        if given:
            raise InputError(f"--{option}", cause=why, hint="leave it out")

    return callback


def _refused(option: str, variable: str, why: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """An option of NVIDIA's that makes no sense here."""
    return values(f"--{option}", "VALUE", f"Refused: {why}.", expose_value=False, envvar=_GENERATE + variable,
                  callback=_refuse(option, why))  # fmt: skip


@cdi.command("generate", cls=Flags, **examples(
    "nvidia-ctk cdi generate", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    "nvidia-ctk cdi generate --driver-root=/run/nvidia/driver --dev-root=/",
))
@value("--output", "path", "FILE", "Default: standard output.", envvar="NVIDIA_CTK_CDI_OUTPUT_FILE_PATH")
@click.option("--format", "form", type=click.Choice(FORMATS, case_sensitive=False),
              envvar=_GENERATE + "OUTPUT_FORMAT", help="Default: by the suffix of the file, else yaml.")
@value("--mode", "--discovery-mode", "MODE", f"auto or nvml; wsl, only under WSL; {', '.join(KINDS)}: devices "
       "beside GPUs; management: every node of the driver. csv is refused.", default="auto",
       envvar=_GENERATE + "MODE")  # fmt: skip
@value("--driver-root", "root", "PATH", "The driver root. Default: as configured, or /.",
       envvar="NVIDIA_CTK_DRIVER_ROOT")  # fmt: skip
@value("--dev-root", "PATH", "Where /dev is. Default: the driver root if it has device nodes, else /.",
       envvar="NVIDIA_CTK_DEV_ROOT")  # fmt: skip
@click.option("--device-name-strategy", "strategies", multiple=True, type=Words(STRATEGIES),
              envvar=_GENERATE + "DEVICE_NAME_STRATEGIES",
              help="Names of devices; repeatable. Default: index and uuid.")
@values("--device-id", "--device-ids", "--device", "--devices", "devices", "ID",
        "Only these devices; repeatable. `none`: a device without a GPU. Default: all.", type=Text(),
        envvar=_GENERATE + "DEVICE_IDS", shell_complete=completion.devices)  # fmt: skip
@flag("--no-all-device", "No device named `all`.", envvar=_GENERATE + "NO_ALL_DEVICE")
@value("--vendor", "--cdi-vendor", "NAME",
       "First part of the device names. Default: nvidia.com; of management, management.nvidia.com.",
       envvar=_GENERATE + "VENDOR")  # fmt: skip
@value("--class", "--cdi-class", "device_class", "NAME",
       "Second part of the device names. Default: gpu; imex-channel; of other kinds, their name.",
       envvar=_GENERATE + "CLASS")  # fmt: skip
@value("--nvidia-cdi-hook-path", "--nvidia-ctk-path", "hook_path", "PATH",
       "The program that the hooks call. Default: nvc-cdi-hook.", envvar="NVIDIA_CTK_CDI_HOOK_PATH")  # fmt: skip
@value("--ldconfig-path", "PATH",
       "Named in the hook that updates the loader cache. nvc's own hook runs no ldconfig.",
       envvar=_GENERATE + "LDCONFIG_PATH")  # fmt: skip
@values("--library-search-path", "libraries", "PATH",
        "The libraries' directory in the driver root, if the loader does not find them.", type=Text(),
        envvar=_GENERATE + "LIBRARY_SEARCH_PATHS")  # fmt: skip
@values("--disable-hook", "--disable-hooks", "disabled", "HOOK", "Omit a hook, or `all`; repeatable.",
        type=Words((*NAMES, *ABSENT, "all")), envvar=_GENERATE + "DISABLED_HOOKS")  # fmt: skip
@values("--enable-hook", "--enable-hooks", "enabled", "HOOK", "Keep a hook that is disabled; repeatable.",
        type=Words(NAMES), envvar=_GENERATE + "ENABLED_HOOKS")  # fmt: skip
@values("--feature-flag", "--feature-flags", "flags", "FLAG",
        f"{', '.join((*sorted(HOLDS), *TURNS_OFF))}; repeatable.",
        type=Words((*sorted(HOLDS), *TURNS_OFF, *NOT_MADE)), envvar=_GENERATE + "FEATURE_FLAGS")  # fmt: skip
@_refused("config-search-path", "CONFIG_SEARCH_PATHS", "the driver root says where its files are")
@_refused("csv.file", "CSV_FILES", REFUSED["csv"])
@_refused("csv.ignore-pattern", "CSV_IGNORE_PATTERNS", REFUSED["csv"])
@_refused("csv.compat-container-root", "CSV_CONTAINER_COMPAT_ROOT", REFUSED["csv"])
@click.pass_context
def generate_command(ctx: click.Context, /, path: str, mode: str, **given: Any) -> None:
    """Write the CDI specification of this host's devices.

    It is the one that `nvc-cli cdi generate` writes, in YAML. Devices beside GPUs are a specification of their own.
    """
    mode = mode.lower()
    _check_mode(mode, given)
    vendor, device_class = beside.kind_of(mode) if mode in (*KINDS, MANAGEMENT) else ("nvidia.com", "gpu")
    given["vendor"], given["device_class"] = given["vendor"] or vendor, given["device_class"] or device_class
    form = form_of(given["form"], path, "yaml")
    place = split_path(path) if path else None
    if NONE in given["devices"] and not given["no_all_device"]:
        output.warn(program_of(ctx), ("a specification with the device `none` has no device `all`",))
        given["no_all_device"] = True
    options, request, how = _translated(ctx, given)
    debug(ctx, f"driver root {options.root}, hooks call {how.hook_path}, {form}")
    if mode in KINDS:
        document = beside.generate(LinuxKernel(), options, request, how, mode, given["devices"])
    else:
        privileges.reduce("info", options.load_kmods)
        document = _of_gpus(ctx, mode, options, request, how)
    put(document, form, place, check=True)
    output.note(program_of(ctx), f"specification of version {document['cdiVersion']}: {path or 'standard output'}")


def _of_gpus(
    ctx: click.Context, mode: str, options: DriverOptions, request: Request, how: DocumentOptions
) -> dict[str, Any]:
    """The document of GPUs, or of everything that manages them. Raises NvcError."""
    if mode == MANAGEMENT:
        return beside.generate(LinuxKernel(), options, request, how, mode)
    document, facts = generate(LinuxKernel(), options, request, how)
    if mode == "wsl" and [one.node.path for one in facts.controls] != ["/dev/dxg"]:
        raise InputError("--mode", mode, "this is not WSL", "leave it out")
    tell(ctx, facts)
    return document


def _check_mode(mode: str, given: dict[str, Any]) -> None:
    """Refuse what is no mode, and options that say something of GPUs beside other devices. Raises InputError."""
    if mode not in MODES:
        raise InputError("--mode", mode, REFUSED.get(mode, f"want {', '.join(MODES)}"))
    for field, option in _OF_GPUS.items() if mode in KINDS else ():
        only(option, given[field], "specifications of GPUs")
    if mode in (*KINDS, MANAGEMENT) and mode != IMEX and set(given["devices"]) - {beside.ALL}:
        raise InputError("--device-id", given["devices"][0], f"{mode} is one device, all", "leave it out")


def _translated(ctx: click.Context, given: dict[str, Any]) -> tuple[DriverOptions, Request, DocumentOptions]:
    """The options in nvc's words. Raises InputError."""
    for named in given["flags"]:
        if named in NOT_MADE:
            raise InputError("--feature-flag", named, NOT_MADE[named], "leave it out")
    for option in ("ldconfig_path", "dev_root"):
        if given[option] and not given[option].startswith("/"):
            raise InputError(f"--{option.replace('_', '-')}", given[option], "want an absolute path")
    root = given["root"] or (load(ctx.obj["config"]).root if ctx.obj["config"] else "")
    ctx.obj["globals"] = {"root": root} if root else {}
    hook = given["hook_path"]
    if hook and "/" not in hook:  # as a shell would find it
        hook = shutil.which(hook) or hook
    disabled = NAMES if "all" in given["disabled"] else given["disabled"]
    options, request, how = asked(ctx, {
        **given, "hook_path": hook, "capabilities": DEFAULT_CAPABILITIES, "requirements": (),
        "additional_gids": False, "disabled": tuple(name for name in disabled if name not in given["enabled"]),
    })  # fmt: skip
    off = {field: False for flag in given["flags"] for field in TURNS_OFF.get(flag, ())}
    return (
        options.replace(device_root=given["dev_root"]),
        request.replace(**off),
        how.replace(ldconfig_path=given["ldconfig_path"]),
    )


@cdi.command("list", cls=Flags, **examples("nvidia-ctk cdi list", "nvidia-ctk cdi list --spec-dir=/etc/cdi"))
@values("--spec-dir", "directories", "PATH",
        f"Directory of specifications; repeatable. Default: {' and '.join(DIRECTORIES)}.", type=Text(),
        envvar="NVIDIA_CTK_CDI_SPEC_DIRS")  # fmt: skip
@click.pass_context
def list_devices(ctx: click.Context, directories: tuple[str, ...]) -> None:
    """List the devices that engines know, one name a line."""
    ctx.invoke(list_command, directories=directories, form="text")


@cdi.group("transform", cls=Commands, **examples("nvidia-ctk cdi transform root --to /host"))
def transform() -> None:
    """Change a specification."""


@transform.command("root", cls=Flags, **examples(
    "nvidia-ctk cdi generate | nvidia-ctk cdi transform root --to /host",
))
@value("--from", "old", "PATH", "Their current root.", default="/")
@value("--to", "new", "PATH", "Their new root.", default="/")
@click.option("--input", "source", default="-", metavar="FILE", help="Default: standard input.")
@value("--output", "path", "FILE", "Default: standard output.")
@click.option("--relative-to", default="host", show_default=True, type=click.Choice(("host", "container")),
              help="Change paths on the host (sources) or in the container.")
def root_command(old: str, new: str, source: str, path: str, relative_to: str) -> None:
    """Replace the root of the paths in a specification."""
    document = transform_root(specification(source), old or "/", new or "/", relative_to)
    place = split_path(os.path.normpath(path)) if path else None
    put(document, form_of(None, path, "yaml"), place, check=False)
