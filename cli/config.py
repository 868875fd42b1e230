"""`nvc-cli config`: what is set and where, and the file changed with its comments kept."""

from __future__ import annotations

import os

import click

from nvc.config import PATHS, ConfigError, check_file
from nvc.config.origins import DEFAULT, Setting, settings, split
from nvc.engines import change, tomltext
from nvc.errors import InputError
from nvc_cli import output
from nvc_cli.main import Commands, program_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SETTINGS = {"help_option_names": ["-?", "--help"], "max_content_width": 100}
_FILE = click.option(
    "--file",
    "named",
    default="",
    metavar="FILE",
    help="Another file than the one that holds.",
    type=click.Path(),
)


@click.group(
    cls=Commands,
    context_settings=_SETTINGS,
    epilog="\b\nExamples:\n"
    "  nvc-cli config show --origin\n"
    "  nvc-cli config set nvc.timeout 20\n"
    "  nvc-cli config check /tmp/config.toml",
)
def config() -> None:
    """Look at and change the one configuration file of hooks, runtime and daemon.

    The first of these that exists holds, the others are not looked at: the file that a hook's -config names,
    /etc/nvc/config.toml, /etc/nvidia-container-runtime/config.toml. No variable of the environment matters.
    """


def path_now(named: str = "") -> str:
    """The file that holds; where there is none yet, the first of PATHS."""
    return named or next((path for path in PATHS if os.path.lexists(path)), PATHS[0])


@config.command(
    context_settings=_SETTINGS,
    epilog="\b\nExamples:\n  nvc-cli config show\n  nvc-cli config show --origin nvc.timeout\n"
    "  nvc-cli config show --format json",
)
@click.argument("names", nargs=-1, metavar="[KEY]...", shell_complete=lambda *words: complete_keys(*words))
@click.option("--origin", is_flag=True, help="Also say which line of which file sets it.")
@click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", help="How to print it."
)
@_FILE
def show(names: tuple[str, ...], origin: bool, form: str, named: str) -> None:
    """Print every setting that has an effect, or just KEYs."""
    wanted = {split(name) for name in names}
    path, found = _read(named)
    chosen = [
        item
        for item in found
        if (item.table, item.key) in wanted or not wanted and (item.effective or item.line)
    ]
    if form == "json":
        output.write(
            output.json_text({"file": path, "settings": [_document(item, path) for item in chosen]})
        )
        return
    for item in chosen:
        where = f"  # {_origin(item, path)}" if origin else ""
        output.write(f"{item.name} = {tomltext.value_text(item.value)}{where}\n")


def _read(named: str) -> tuple[str, tuple[Setting, ...]]:
    path = path_now(named)
    data = change.read(path)
    if data is None and named:
        raise ConfigError("open", path, "no such file")
    return ("" if data is None else path), settings(data or b"", path)


def _origin(item: Setting, path: str) -> str:
    text = f"{path}:{item.line}" if item.line else DEFAULT
    return text if item.effective else f"{text} (no effect)"


def _document(item: Setting, path: str) -> dict[str, Any]:
    return {
        "key": item.name,
        "value": item.value,
        "origin": path if item.line else None,
        "line": item.line or None,
        "effective": item.effective,
    }


@config.command(
    "set",
    context_settings=_SETTINGS,
    epilog="\b\nExamples:\n  nvc-cli config set nvc.timeout 20\n  nvc-cli config set --unset nvc.timeout\n"
    "  nvc-cli config set --dry-run nvidia-container-cli.no-cgroups true",
)
@click.argument("name", metavar="KEY", shell_complete=lambda *words: complete_keys(*words))
@click.argument("text", metavar="[VALUE]", default=None, required=False)
@click.option("--unset", is_flag=True, help="Take the key out: its default holds again.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@_FILE
@click.pass_context
def set_command(
    ctx: click.Context, name: str, text: str | None, unset: bool, dry_run: bool, named: str
) -> None:
    """Write one setting; comments and everything else of the file stay as they are.

    VALUE is as TOML has it (true, 20, ["a", "b"]); anything else is a text. What makes no sense is refused, and
    so is a file that would not be accepted with it.
    """
    if unset == (text is not None):
        raise InputError("config set", cause="want a VALUE, or --unset")
    table, key = split(name)
    keys = (*(table.split(".") if table else ()), key)
    path = os.path.realpath(path_now(named))
    before = change.read(path)
    old = change.text_of(before, path)
    if unset:
        new = tomltext.delete(old, path, keys)
    else:
        new = _assigned(old, path, keys, text or "")
    known = _warnings(old, path)
    output.warn(program_of(ctx), tuple(one for one in _warnings(new, path) if one not in known))
    edit = change.Change(path, before, new.encode() if new or before is not None else None)
    if dry_run:
        output.write(change.diff(edit))
    elif edit.before != edit.after:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        change.make(edit)


def _warnings(text: str, path: str) -> tuple[str, ...]:
    from nvc.config.file import examine

    return examine(text.encode(), path)[1]


def _assigned(old: str, path: str, keys: tuple[str, ...], text: str) -> str:
    """The file with the value, of the first of its readings that is accepted: as TOML, then as a text."""
    readings = [*tomltext.readings(text), text]
    error: ConfigError | None = None
    for value in readings:
        new = tomltext.assign(old, path, keys, value)
        try:
            settings(new.encode(), path)
        except ConfigError as refused:
            error = error or refused
            continue
        return new
    assert error is not None
    raise error


@config.command(
    context_settings=_SETTINGS,
    epilog="\b\nExamples:\n  nvc-cli config check\n  nvc-cli config check /tmp/new.toml",
)
@click.argument("named", default="", metavar="[FILE]", type=click.Path())
@click.pass_context
def check(ctx: click.Context, named: str) -> None:
    """Say everything that is wrong with a file; exit code 1 if anything is.

    Also who may have changed it is looked at, as hooks do: a file that is not root's alone is refused.
    """
    path = path_now(named)
    if not named and not os.path.lexists(path):
        output.write("no configuration file: all defaults\n")
        return
    warnings, errors = check_file(path)
    for warning in warnings:
        output.write(f"warning: {warning}\n")
    for error in errors:
        output.write(f"{error}\n")
    output.write(f"{path}: {len(errors)} errors, {len(warnings)} warnings\n")
    ctx.exit(1 if errors else 0)


def complete_keys(_: click.Context, __: click.Parameter, begun: str) -> list[Any]:
    """The names of all keys that begin so."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(item.name) for item in settings(b"", "") if item.name.startswith(begun)]
