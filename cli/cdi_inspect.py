"""`nvc-cli cdi list` and `validate`: the specifications that there are, and what is wrong with them."""

from __future__ import annotations

import click

from nvc.base.columns import fitted
from nvc.base.errors import NvcError, counted
from nvc.discovery import discover
from nvc.frontends.cdi.generate import findings
from nvc.frontends.cdi.store import DIRECTORIES, SpecFile, read_directory, read_spec
from nvc.kernel import LinuxKernel
from nvc.model.facts import HostFacts
from nvc_cli import arguments, output
from nvc_cli.main import command, format_option, program_of, values


@command("list", "nvc-cli cdi list", "nvc-cli cdi list --format json")
@values("--spec-dir", "directories", "PATH",
        f"Directory of specifications; repeatable. Default: {' and '.join(DIRECTORIES)}.")  # fmt: skip
@format_option("text", "table")
@click.pass_context
def list_command(ctx: click.Context, directories: tuple[str, ...], form: str) -> None:
    """List the devices that engines know, one name a line.

    Later directories take precedence. Problems are warnings on standard error: files that engines ignore, names
    that two files define, and specifications that no longer match this host.
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
    rows = [(name, known[name].path) for name in sorted(known)]
    output.show(
        form,
        lambda: {"devices": [{"name": name, "file": path} for name, path in rows], "warnings": warnings},
        lambda width: fitted([("DEVICE", "FILE"), *rows], width, tail=("FILE",)),
        lambda: "".join(f"{name}\n" for name, _ in rows),
    )


@command("validate", "nvc-cli cdi validate /etc/cdi/nvidia.yaml")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@format_option("text")
@click.pass_context
def validate_command(ctx: click.Context, files: tuple[str, ...], form: str) -> None:
    """Check specifications by the rules of the engines, which ignore an invalid file silently.

    The exit code is 1 if engines would not load one of them. Stale specifications and missing files are warnings.
    """
    read = [read_spec(path) for path in files]
    facts = _facts(ctx, read)
    wrong = sum(bool(file.problems) for file in read)
    if form != "text":
        rows = [
            {
                "file": file.path,
                "valid": not file.problems,
                "problems": list(file.problems),
                "warnings": [] if file.problems else list(findings(file.document, facts)),
            }
            for file in read
        ]
        output.write(output.document_text({"files": rows}, form))
        ctx.exit(1 if wrong else 0)
    for file in read:
        for problem in file.problems:
            output.say(program_of(ctx), f"{file.path}: {problem}")
        if file.problems:
            continue
        output.warn(
            program_of(ctx), tuple(f"{file.path}: {text}" for text in findings(file.document, facts))
        )
        devices = len(file.document["devices"])
        output.write(f"{file.path}: valid, {counted(devices, 'device')}, version {file.document['cdiVersion']}\n")
    if wrong:
        ctx.exit(1)


def _facts(ctx: click.Context, files: list[SpecFile]) -> HostFacts | None:
    """The host's facts, if one of the files can be compared with them; None where no driver is found."""
    if not any(file.document for file in files):
        return None
    options = arguments.driver_options(ctx.obj["globals"])
    try:
        return discover(LinuxKernel(), options)
    except NvcError as error:
        output.warn(program_of(ctx), (f"cannot tell whether specifications are up to date: {error}",))
        return None
