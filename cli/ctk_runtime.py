"""`nvidia-ctk runtime configure`: registers the runtime as NVIDIA's program does, under the name `nvidia`."""

from __future__ import annotations

import os
from typing import Any

import click

from nvc.base.errors import InputError
from nvc.base.program import programs
from nvc.frontends.engines import RUNTIME, FileEdit, Wanted, ask, crio, hooksd
from nvc.frontends.engines.files import change
from nvc.frontends.engines.files.change import Change
from nvc_cli import output
from nvc_cli.ctk import Flags, debug, only
from nvc_cli.main import Commands, examples, flag, program_of, value
from nvc_cli.runtime import registration, wanted

ENGINES = ("docker", "containerd", "crio")
PROGRAM = "nvidia-container-runtime"
HOOK_MODES, FILE_MODES = ("oci-hook", "hook"), ("config-file", "config")
DEFAULT = "RUNTIME_SPECIFIC_DEFAULT"


@click.group(cls=Commands, **examples("nvidia-ctk runtime configure --runtime=docker"))
def runtime() -> None:
    """Register the runtime with container engines."""


@runtime.command(cls=Flags, **examples(
    "nvidia-ctk runtime configure --runtime=docker",
    "nvidia-ctk runtime configure --runtime=containerd --set-as-default",
    "nvidia-ctk runtime configure --runtime=crio --dry-run",
))
@click.option("--runtime", "engine", default="docker", show_default=True, type=click.Choice(ENGINES),
              help="The engine to configure.")
@flag("--dry-run", "Print the files as they would be, and change nothing.")
@value("--config", "FILE", "The engine's configuration file, if not the default.")
@click.option("--drop-in-config", "drop_in", default=DEFAULT, metavar="FILE",
              help='containerd, crio: the drop-in to write; "": change the file itself. '
              "Default: conf.d/99-nvc.toml where containerd reads it, crio.conf.d/99-nvc.conf.")
@value("--executable-path", "executable", "PATH", "containerd: the program to ask for the configuration in use.")
@value("--config-mode", "mode", "MODE",
       "config-file (default), or oci-hook: write the file of a hook, and register no runtime.")  # fmt: skip
@click.option("--config-source", "source", default="file", type=click.Choice(("file", "command")),
              show_default=True, help="containerd: either; nvc reads the file and asks containerd. Others: file.")
@value("--oci-hook-path", "oci_hook", "FILE", "The file of --config-mode=oci-hook. Default: standard output.")
@value("--nvidia-runtime-name", "--runtime-name", "name", "NAME", "Name of the runtime.", default="nvidia")
@click.option("--nvidia-runtime-path", "--runtime-path", "path", default=PROGRAM, metavar="PATH",
              help="Path of the runtime. Default: nvc-runtime beside this program.")
@value("--nvidia-runtime-hook-path", "hook", "PATH",
       "The hook of --config-mode=oci-hook. Default: nvc-hook beside this program.")  # fmt: skip
@flag("--nvidia-set-as-default", "--set-as-default", "default", "Use the runtime for containers that name none.")
@flag("--cdi.enabled", "--cdi.enable", "--enable-cdi", "cdi", "Have the engine read CDI specifications.")
@click.pass_context
def configure(ctx: click.Context, /, engine: str, dry_run: bool, **given: Any) -> None:
    """Register nvc-runtime in an engine's configuration, under the name nvidia.

    `nvc-cli runtime configure --remove` undoes it. Restart the engine afterwards.
    """
    if given["mode"] in HOOK_MODES:
        _finish(ctx, [_hook(given)], ("an OCI hook is deprecated: use the runtime, or CDI",), dry_run)
        return
    if given["mode"] not in ("", *FILE_MODES):
        raise InputError("--config-mode", given["mode"], f"want {FILE_MODES[0]} or {HOOK_MODES[0]}")
    for option in ("oci_hook", "hook"):
        only("oci-hook-path" if option == "oci_hook" else "nvidia-runtime-hook-path", given[option],
             f"--config-mode={HOOK_MODES[0]}")  # fmt: skip
    if engine != "containerd":
        only("executable-path", given["executable"], "containerd, which nvc asks")
        only("config-source=command", given["source"] == "command", "containerd, which nvc asks")
    asked = _wanted(engine, given)
    debug(ctx, f"{engine}: {asked.runtime_name} is {asked.runtime_path}")
    changes, _, advice = registration(engine, asked, given["executable"])
    _finish(ctx, changes, advice, dry_run)


def _wanted(engine: str, given: dict[str, Any]) -> Wanted:
    """The options in nvc's words. Raises InputError."""
    drop_in, config = given["drop_in"], given["config"]
    usual = drop_in == DEFAULT
    if not usual and drop_in and not drop_in.startswith("/"):
        raise InputError("--drop-in-config", drop_in, "want an absolute path")
    if engine == "docker":
        only("drop-in-config", "" if usual else drop_in, "containerd and crio: dockerd reads one file")
    if engine == "crio":  # whose own file is one among others
        config = (config or crio.MAIN) if not usual and not drop_in else config if usual else drop_in
    path = given["path"]
    if path == PROGRAM:
        path = f"{programs()}/{RUNTIME}"
    elif "/" not in path and engine == "docker":
        path = ask.on_path(path) or path
    asked = wanted(
        engine, False, runtime_name=given["name"], runtime_path=path, default=given["default"], cdi=given["cdi"],
        config=config, hook_dir="", hook_link="",
        drop_in=drop_in if engine == "containerd" and not usual else "",
    )  # fmt: skip
    return asked.replace(no_drop_in=engine == "containerd" and not drop_in)


def _hook(given: dict[str, Any]) -> Change:
    """The file of hooks.d. Raises InputError, EngineError."""
    hook, path = given["hook"] or f"{programs()}/nvc-hook", given["oci_hook"]
    if not hook.startswith("/"):
        raise InputError("--nvidia-runtime-hook-path", hook, "want an absolute path")
    text = hooksd.TEXT.format(path=hook)
    if not path:
        return change.Change("", None, text.encode())
    return change.configure(FileEdit(os.path.abspath(path), "json", content=text))


def _finish(ctx: click.Context, changes: list[Change], advice: tuple[str, ...], dry_run: bool) -> None:
    """Make the changes and tell of them, or print the files as they would be."""
    program = program_of(ctx)
    for item in changes:
        if dry_run or not item.path:
            output.write(change.text_of(item.after, item.path))
        else:
            change.check_writable(item)
    for item in changes if not dry_run else ():
        output.warn(program, item.notes)
        if item.path:
            change.make(item)
            output.note(program, change.summary(item, False).rstrip() or f"{item.path}: nothing to change")
    for line in advice if not dry_run else ():
        output.note(program, line)
