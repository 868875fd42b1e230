"""`nvidia-ctk config`: the configuration in NVIDIA's form, which is the one that nvc reads."""

from __future__ import annotations

import os

import click

from nvc.base.errors import InputError
from nvc.frontends.engines.files import change, place, tomltext
from nvc.request.config import PATHS
from nvc.request.config.file import examine, refusal
from nvc.request.config.keys import KEYS
from nvc.request.config.origins import settings, split
from nvc_cli import output
from nvc_cli.config import assigned, path_now
from nvc_cli.ctk import Flags
from nvc_cli.main import Commands, examples, flag, program_of, value, values

_BOOLEAN = {"1": "true", "t": "true", "true": "true", "0": "false", "f": "false", "false": "false"}
_LISTS = ("texts", "paths", "environment")
_OURS = ("nvc", "nvcd")
#: Keys whose defaults NVIDIA's file has as comments.
_COMMENTED = (
    "swarm-resource", "accept-nvidia-visible-devices-envvar-when-unprivileged",
    "accept-nvidia-visible-devices-as-volume-mounts", "root", "debug", "ldcache", "environment", "no-cgroups",
    "user",
)  # fmt: skip
_OUTPUT = value("--output", "-o", "path", "FILE", "Default: standard output.")


def default_text() -> str:
    """The keys of NVIDIA's tables that have an effect in nvc, with their defaults."""
    text, table = "", ""
    for item in settings(b"", "")[0]:
        if not item.effective or item.table in _OURS:
            continue
        if item.table != table:
            table = item.table
            text += f"\n[{table}]\n"
        mark = "#" if item.key in _COMMENTED or item.value in ("", []) else ""
        text += f"{mark}{item.key} = {tomltext.value_text(item.value)}\n"
    return text


@click.group(invoke_without_command=True, cls=Commands, **examples(
    "nvidia-ctk config", "nvidia-ctk config --in-place --set nvidia-container-runtime.mode=cdi",
    "nvidia-ctk config default --output /etc/nvc/config.toml",
))
@value("--config-file", "--config", "-c", "file", "FILE",
       f"The file. Default: the first of {' and '.join(PATHS)} that there is.",
       envvar="NVIDIA_CTK_CONFIG_FILE_PATH")  # fmt: skip
@values("--set", "sets", "KEY[=VALUE]",
        "Set a key; without a value to true. A colon or a comma separates values of a list. Repeatable.")
@flag("--in-place", "-i", "Change the file.")
@_OUTPUT
@click.pass_context
def config(ctx: click.Context, file: str, sets: tuple[str, ...], in_place: bool, path: str) -> None:
    """Print the configuration, or the defaults where there is no file, or change it.

    `nvc-cli config show` prints every setting with its value, and where it comes from.
    """
    if ctx.invoked_subcommand is not None:
        if file or sets or in_place or path:
            cause = "options of `config` are for it alone"
            raise InputError(ctx.invoked_subcommand, cause=cause, hint="write no option before it")
        return
    if in_place and path:
        raise InputError("--in-place", path, "not together with --output", "leave out one of them")
    source = place.resolved(path_now(file))
    before = change.read(source)
    text = default_text() if before is None else change.text_of(before, source)
    examined = examine(text.encode(), source)
    for one in sets:
        text = _set(text, source, one)
    new = examine(text.encode(), source)
    known = {*examined[1], *map(refusal, examined[2])}
    output.warn(program_of(ctx), tuple(one for one in (*new[1], *map(refusal, new[2])) if one not in known))
    if not in_place:
        _put(text, path)
        return
    edit = change.Change(source, before, text.encode())
    change.check_writable(edit)
    change.make_directory(source)
    change.make(edit)
    output.note(program_of(ctx), change.summary(edit, False).rstrip() or f"{source}: nothing to change")
    active = path_now()
    if source != os.path.realpath(active) and source in PATHS:
        output.warn(program_of(ctx), (f"nvc does not read {source} while there is {active}",))


def _set(text: str, path: str, given: str) -> str:
    """The file with one key set. Raises ConfigError, InputError."""
    name, equals, value = given.partition("=")
    table, key = split(name)
    kind = KEYS[table][key][1]
    keys = (*(table.split(".") if table else ()), key)
    if equals and value == "nil":
        return tomltext.delete(text, path, keys)
    if kind == "bool":
        value = _BOOLEAN.get(value.lower() if equals else "true", value)
    elif not equals:
        raise InputError("--set", given, "want KEY=VALUE")
    elif kind in _LISTS:
        separator = next((one for one in (":", ",") if one in value and kind == "texts" or one == ","), ",")
        value = tomltext.value_text(value.split(separator) if value else [])
    return assigned(text, path, keys, value)


def _put(text: str, path: str) -> None:
    """Write to a file, or to standard output. Raises EngineError."""
    if not path:
        output.write(text)
        return
    path = place.resolved(path)
    change.make_directory(path)
    change.make(change.Change(path, change.read(path), text.encode()))



@config.command("default", cls=Flags, **examples("nvidia-ctk config default"))
@_OUTPUT
def default_command(path: str) -> None:
    """Print the default configuration."""
    _put(default_text(), path)
