"""`nvc-cli runtime configure`: registers nvc with a container engine, and takes that back."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import click

from nvc.base.errors import InputError
from nvc.base.program import programs
from nvc.frontends.engines import RUNTIME, Wanted
from nvc.frontends.engines import link as links
from nvc.frontends.engines.files import change
from nvc.frontends.engines.files.change import Change
from nvc.frontends.engines.registered import ENGINES, having
from nvc_cli import output
from nvc_cli.main import Commands, examples, filled, flag, program_of, value

_Work: TypeAlias = tuple[list[Change], tuple[str, str], tuple[str, ...]]

@click.group(cls=Commands, **examples(
    "nvc-cli runtime configure --engine docker --dry-run",
    "nvc-cli runtime configure --engine containerd --remove",
))
def runtime() -> None:
    """Register nvc with container engines."""


@runtime.command(**examples(
    "nvc-cli runtime configure --engine docker --hook-link /usr/local/bin",
    "nvc-cli runtime configure --engine containerd --set-as-default --dry-run",
    "nvc-cli runtime configure --engine podman --hook-dir /etc/nvc/hooks.d",
    "nvc-cli runtime configure --engine docker --remove",
))
@click.option("--engine", required=True, type=click.Choice(tuple(ENGINES)), help="The engine to configure.")
@flag("--dry-run", "Show what would change, and change nothing.")
@flag("--remove", "Undo an earlier `configure`. Repeat --hook-link and --hook-dir to undo them too.")
@value("--config", "FILE", "The engine's configuration file, if not the default.", callback=filled)
@flag("--set-as-default", "default", "Use the runtime for containers that name none.")
@value("--runtime-name", "NAME", "Name of the runtime.", default="nvc")
@value("--runtime-path", "PATH", "Path of nvc-runtime. Default: beside nvc-cli.", callback=filled)
@value("--hook-dir", "DIR", f"{', '.join(having('hook_dir'))}: register the hook in DIR, not the runtime.",
       callback=filled)  # fmt: skip
@value("--hook-link", "DIR", "docker: link nvc-hook in DIR under NVIDIA's name, as packages do.", callback=filled)
@value("--drop-in", "FILE", "containerd 2.1 and newer: the drop-in, if not conf.d/99-nvc.toml.", callback=filled)
@flag("--cdi", "Have the engine read CDI specifications.")
@click.pass_context
def configure(ctx: click.Context, /, engine: str, dry_run: bool, remove: bool, **given: Any) -> None:
    """Register nvc-runtime, or the hook, in an engine's configuration.

    The change is shown as a unified diff. The original file is kept beside it: --remove restores it byte for byte,
    or removes only these keys if the file has changed since. Files that cannot be parsed are not changed.
    """
    program = program_of(ctx)
    asked = wanted(engine, remove, **given)
    changes, link, advice = _removal(engine, asked) if remove else registration(engine, asked)
    for item in () if dry_run else changes:
        change.check_writable(item)
    output.write("".join(change.diff(item) for item in changes))
    for item in changes:
        for note in item.notes:
            output.say(program, f"warning: {note}")
    done = []
    for item in changes:
        if not dry_run:
            change.make(item)
        done.append(change.summary(item, dry_run))
        output.write(done[-1])
    done.append(_link(*link, remove, dry_run) if link[0] else "")
    output.write(done[-1])
    if not any(done):
        output.say(
            program, f"{engine}: nothing to {'remove' if remove else 'change: it is registered already'}"
        )
    for line in advice if any(done) or not remove else ():
        output.say(program, line)


def wanted(engine: str, remove: bool, **given: Any) -> Wanted:
    """The options as what is wanted. Raises InputError for those that do not go together."""
    for option in ("hook_dir", "hook_link", "drop_in"):
        if given.get(option) and option not in ENGINES[engine].options:
            name = "--" + option.replace("_", "-")
            raise InputError(name, engine, f"is for {' and '.join(having(option))}", "leave it out")
    if remove and (given["default"] or given["cdi"]):
        raise InputError("--remove", cause="removes everything", hint="leave out --set-as-default and --cdi")
    name = given["runtime_name"]
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii():
        raise InputError("--runtime-name", name, "want letters, digits, '-', '_' and '.'")
    for option in ("config", "runtime_path", "hook_dir", "hook_link", "drop_in"):
        path = given.get(option)
        if path and not (path.startswith("/") and path.isprintable()):
            raise InputError("--" + option.replace("_", "-"), path, "want an absolute path")
    directory = programs()
    path = given.pop("runtime_path") or f"{directory}/{RUNTIME}"
    if not remove and not os.access(path, os.X_OK):
        raise InputError("--runtime-path", path, "is not a program", "install nvc, or name its nvc-runtime")
    return Wanted(runtime_path=path, hook_path=f"{directory}/nvc-hook", **given)


def registration(engine: str, wanted: Wanted, program: str = "") -> _Work:
    """The changes that register nvc, the link (path and target), and advice for the user.

    `program` is what to ask in place of the containerd of this host.
    """
    found = ENGINES[engine].registration(wanted, program)
    changes = [change.configure(edit) for edit in found.edits]
    texts = {item.path: change.text_of(item.after, item.path) for item in changes}
    ENGINES[engine].check(wanted, texts, program)
    if found.link[0]:
        links.state(*found.link)
    return changes, found.link, found.advice


def _removal(engine: str, wanted: Wanted) -> _Work:
    found = ENGINES[engine].files(wanted)
    changes = [change.remove(path, form) for path, form in found.paths]
    return [item for item in changes if item is not None], (found.link, wanted.hook_path), found.advice


def _link(path: str, target: str, remove: bool, dry_run: bool) -> str:
    """Make or remove the link; one line that says so, "" where there is nothing to do."""
    if remove:
        if not (links.removable(path, target) if dry_run else links.remove(path, target)):
            return ""
        return f"{'would remove' if dry_run else 'removed'} the link {path}\n"
    if links.state(path, target) == "ours":
        return ""
    if not dry_run:
        links.make(path, target)
    return f"{'would link' if dry_run else 'linked'} {path} -> {target}\n"
