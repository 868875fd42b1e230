"""`nvc-cli config`: what is set and where, and the file changed with its comments kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from nvc.base.columns import fitted
from nvc.base.errors import one_line
from nvc.frontends.engines.files import change, place, tomltext
from nvc.request.config import PATHS, ConfigError, check_file
from nvc.request.config.file import examine, refusal, written
from nvc.request.config.origins import DEFAULT, Setting, settings, split
from nvc_cli import output
from nvc_cli.main import Commands, examples, filled, flag, format_option, program_of, value

ROOT = ("nvidia-container-cli", "root")
_FILE = value("--file", "named", "FILE", "Use FILE instead of the active configuration.", type=click.Path(),
              callback=filled)  # fmt: skip
_KEY = click.argument("name", metavar="KEY", shell_complete=lambda *words: complete_keys(*words))
_DRY_RUN = flag("--dry-run", "Show what would change, and change nothing.")


@click.group(cls=Commands, **examples(
    "nvc-cli config show --origin", "nvc-cli config get nvc.timeout",
    "nvc-cli config set nvc.timeout 20", "nvc-cli config check /tmp/config.toml",
))
def config() -> None:
    """Show, change and check the configuration file of hooks, runtime and daemon.

    The first of these files that exists is the active one: the file that a hook's -config names,
    /etc/nvc/config.toml, /etc/nvidia-container-runtime/config.toml. Environment variables do not change it.
    """


def path_now(named: str = "") -> str:
    """The active file; where there is none yet, the first of PATHS."""
    return named or next((path for path in PATHS if os.path.lexists(path)), PATHS[0])


@config.command(**examples(
    "nvc-cli config show", "nvc-cli config show --origin nvc.timeout",
    "nvc-cli config show --format json",
))
@click.argument("names", nargs=-1, metavar="[KEY]...", shell_complete=lambda *words: complete_keys(*words))
@flag("--origin", "Also show which line of which file sets it.")
@format_option("text", "table")
@_FILE
@click.pass_context
def show(ctx: click.Context, names: tuple[str, ...], origin: bool, form: str, named: str) -> None:
    """Print every setting that has an effect, or just KEYs."""
    wanted = {split(name) for name in names}
    path, found = _read(ctx, named)
    chosen = [
        item
        for item in found
        if (item.table, item.key) in wanted or not wanted and (item.effective or item.line)
    ]
    rows = [(item.name, tomltext.value_text(item.value), _origin(item, path)) for item in chosen]
    output.show(
        form,
        lambda: {"file": path, "settings": [_document(item, path) for item in chosen]},
        lambda width: fitted(
            [("KEY", "VALUE", "ORIGIN"), *rows], width, ("ORIGIN",), ("VALUE",), ("KEY",), short=width
        ),
        lambda: "".join(f"{key} = {value}{f'  # {where}' if origin else ''}\n" for key, value, where in rows),
    )


@config.command(**examples("nvc-cli config get nvc.timeout", "nvc-cli config get -o json nvc.vgpu-policy"))
@_KEY
@format_option("text", "table")
@_FILE
@click.pass_context
def get(ctx: click.Context, name: str, form: str, named: str) -> None:
    """Print the value of one setting: a string without quotes, other types as TOML.

    A key that the file does not set has its default.
    """
    wanted = split(name)
    path, found = _read(ctx, named)
    item = next(item for item in found if (item.table, item.key) == wanted)
    value = item.value if isinstance(item.value, str) else tomltext.value_text(item.value)
    output.show(
        form,
        lambda: _document(item, path),
        lambda width: fitted([("KEY", "VALUE"), (item.name, value)], width),
        lambda: f"{one_line(value)}\n",
    )


def _read(ctx: click.Context, named: str) -> tuple[str, tuple[Setting, ...]]:
    """The active file ("": there is none) and its settings; wrong values are warned about."""
    path = path_now(named)
    data = change.read(path)
    if data is None and named:
        raise ConfigError("open", path, "no such file", "`nvc-cli config set` makes it")
    found, errors = settings(data or b"", path)
    output.warn(program_of(ctx), tuple(map(refusal, errors)))
    return ("" if data is None else path), found


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


@config.command("set", **examples(
    "nvc-cli config set nvc.timeout 20",
    "nvc-cli config set --dry-run nvidia-container-cli.no-cgroups true",
))
@_KEY
@click.argument("text", metavar="VALUE")
@_DRY_RUN
@_FILE
@click.pass_context
def set_command(ctx: click.Context, name: str, text: str, dry_run: bool, named: str) -> None:
    """Write one setting; the rest of the file is preserved byte for byte.

    VALUE is TOML (true, 20, ["a", "b"]); anything else is a string. Invalid values are refused, and so is a change
    that makes the file invalid. Wrong values elsewhere in NVIDIA's tables are warnings.
    """
    _change(ctx, named, name, dry_run, lambda old, path, keys: assigned(old, path, keys, text))


@config.command(**examples("nvc-cli config unset nvc.timeout", "nvc-cli config unset --dry-run nvc.timeout"))
@_KEY
@_DRY_RUN
@_FILE
@click.pass_context
def unset(ctx: click.Context, name: str, dry_run: bool, named: str) -> None:
    """Remove one setting from the file, so that its default applies again."""
    _change(ctx, named, name, dry_run, tomltext.delete)


def _change(
    ctx: click.Context, named: str, name: str, dry_run: bool,
    edited: Callable[[str, str, tuple[str, ...]], str],
) -> None:  # fmt: skip
    """Change one key of the file by `edited`, which takes its text, its path and the key; say what was written."""
    table, key = split(name)
    path = place.resolved(path_now(named))
    before = change.read(path)
    written(before or b"", path)  # with the words of who reads it
    old = change.text_of(before, path)
    new = edited(old, path, (*(table.split(".") if table else ()), key))
    known = examine(old.encode(), path)[1]
    fields, warnings, errors = examine(new.encode(), path)
    new_ones = tuple(one for one in warnings if one not in known)
    if (table, key) == ROOT and not os.path.isdir(str(fields.get("root", "/"))):
        new_ones += (f"{fields['root']}: no such directory: until there is one, no driver is found",)
    output.warn(
        program_of(ctx), (*new_ones, *(refusal(error) for error in errors if error.fields is not None))
    )
    edit = change.Change(path, before, new.encode() if new or before is not None else None)
    if edit.before == edit.after:
        output.say(program_of(ctx), f"{path}: nothing to change")
        return
    if not dry_run:
        change.check_writable(edit)
    output.write(change.diff(edit))
    if not dry_run:
        change.make_directory(path)
        change.make(edit)
    output.write(change.summary(edit, dry_run))


def assigned(old: str, path: str, keys: tuple[str, ...], text: str) -> str:
    """The file with the value, of the first of its readings that is accepted: as TOML, then as a text."""
    key = (".".join(keys[:-1]), keys[-1])
    readings = [*tomltext.readings(text), text]
    error: ConfigError | None = None
    for reading in readings:
        new = tomltext.assign(old, path, keys, reading)
        wrong = [one for one in examine(new.encode(), path)[2] if one.fields is None or one.key == key]
        if not wrong:
            return new
        error = error or wrong[0]
    assert error is not None
    raise error


@config.command(**examples("nvc-cli config check", "nvc-cli config check /tmp/new.toml"))
@click.argument("named", default="", metavar="[FILE]", type=click.Path(), callback=filled)
@format_option("text")
@click.pass_context
def check(ctx: click.Context, named: str, form: str) -> None:
    """List the problems of a file; the exit code is 1 if there are errors.

    Ownership and permissions are checked too: hooks refuse a file that others than root can write.
    """
    path = path_now(named)
    missing = not named and not os.path.lexists(path)
    warnings, errors = ((), ()) if missing else check_file(path)
    lines = [*(f"warning: {warning}" for warning in warnings), *map(str, errors)]
    lines.append(f"{path}: errors: {len(errors)}, warnings: {len(warnings)}")
    text = "no configuration file: all defaults" if missing else "\n".join(lines)
    problems = [{"kind": "warning", "text": warning} for warning in warnings]
    problems += [{"kind": "error", "text": str(error)} for error in errors]
    output.show(form, lambda: {"file": None if missing else path, "problems": problems}, str, lambda: f"{text}\n")
    ctx.exit(1 if errors else 0)


def complete_keys(_: click.Context, __: click.Parameter, begun: str) -> list[Any]:
    """The names of all keys that begin so."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(item.name) for item in settings(b"", "")[0] if item.name.startswith(begun)]
