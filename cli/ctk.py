"""nvidia-ctk: NVIDIA's words, defaults, variables and exit codes for what nvc-cli does under its own.

`hook` does not come here: the launcher runs nvc-cdi-hook for it. What a command does, nvc-cli's own modules decide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

import nvc
from nvc.base.errors import InputError, UsageError
from nvc.base.program import Silent, guarded
from nvc_cli import output
from nvc_cli.main import CONTEXT, Examples, LazyGroup, call, examples, flag, program_of, value
from nvc_cli.version import versions

#: What NVIDIA's program ends with where it does not know a command.
NO_COMMAND = 3
#: In the shape of nvc_cli.main.LAZY.
LAZY = {
    "hook": ("nvc_cli.ctk", "hook", "Run a hook of a CDI specification, as nvidia-cdi-hook"),
    "runtime": ("nvc_cli.ctk_runtime", "runtime", "Register the runtime with container engines"),
    "info": ("nvc_cli.ctk", "info", "Show this program's help, as NVIDIA's does"),
    "cdi": ("nvc_cli.ctk_cdi", "cdi", "Describe devices for engines (Container Device Interface)"),
    "system": ("nvc_cli.ctk_system", "system", "Make device nodes and links to them"),
    "config": ("nvc_cli.ctk_config", "config", "Print and change the configuration"),
}
_TRUE, _FALSE = ("1", "t", "true"), ("0", "f", "false")


def main(program: str = "nvidia-ctk") -> NoReturn:
    """Run the command of `sys.argv`, and end the process."""
    sys.exit(guarded(program, lambda: _run(program, sys.argv[1:])))


def _run(program: str, argv: list[str]) -> int:
    try:
        return call(tree, program, own_first(argv))
    except UsageError as error:
        error.exit_code = NO_COMMAND
        raise


def own_first(argv: list[str]) -> list[str]:
    """The words with the program's own options in front: behind a command they mean the same."""
    own: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    command = next((word for word in argv if word[:1] != "-"), "")
    for word in words:
        name, equals, _ = word.partition("=")
        if name == "--config" and command not in ("config", "runtime"):  # which have one themselves
            own += [word, *([] if equals else [next(words, "")])]
        else:
            (own if name in ("--debug", "-d", "--quiet") else rest).append(word)
    return own + rest


class Flags(Examples):
    """A command whose flags may have a value, as in Go: `--dry-run=true`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(plain(self, args)))


def plain(command: click.Command, args: list[str]) -> Iterator[str]:
    """The words without values of flags; a flag that is false is left out. Raises InputError."""
    flags = {name for one in command.params if isinstance(one, click.Option) and one.is_flag for name in one.opts}
    for word in args:
        name, equals, value = word.partition("=")
        if not equals or name not in flags:
            yield word
        elif value.lower() in _TRUE:
            yield name
        elif value.lower() not in _FALSE:
            raise InputError(name, value, "want true or false")


class Words(click.Choice):  # type: ignore[type-arg, unused-ignore]
    """One of some words, which a variable separates by commas."""

    envvar_list_splitter = ","


class Text(click.types.StringParamType):
    """Any text; a variable separates several by commas."""

    envvar_list_splitter = ","


def debug(ctx: click.Context, text: str) -> None:
    """A line for --debug."""
    ctx.obj["log"].step(text)


def only(name: str, given: object, wanted: str) -> None:
    """Refuse an option that says something without another. Raises InputError."""
    if given:
        raise InputError(f"--{name}", cause=f"is only for {wanted}", hint="leave it out")


class _Tree(LazyGroup):
    lazy = LAZY

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(plain(self, args)))


@click.group("nvidia-ctk", cls=_Tree, subcommand_metavar="COMMAND [ARG...]", **examples(
    "nvidia-ctk runtime configure --runtime=docker",
    "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    "nvidia-ctk config --in-place --set nvidia-container-cli.no-cgroups",
))
@flag("--debug", "-d", "Log each step to standard error.", envvar="NVIDIA_CTK_DEBUG")
@flag("--quiet", "No warnings and remarks; no --debug.", envvar="NVIDIA_CTK_QUIET")
@value("--config", "file", "FILE",
       "The configuration that names the driver root. Default: the one that hooks read.",
       envvar="NVIDIA_CTK_CONFIG")  # fmt: skip
@flag("--version", "-v", "shown", "Show the version.", is_eager=True, expose_value=False,
      callback=lambda *words: _show_version(*words))  # fmt: skip
@click.pass_context
def tree(ctx: click.Context, debug: bool, quiet: bool, file: str) -> None:
    """Configure container engines, CDI and the driver's device nodes, in the words of NVIDIA's Container Toolkit.

    nvc-cli has the same functions and more: see nvc-cli(1). An unknown command ends with exit code 3.
    """
    output.quiet = quiet
    log: Any = Silent()
    if debug and not quiet:
        from nvc_cli.debuglog import open_log

        log = open_log(program_of(ctx), "/dev/stderr")
    ctx.obj = {"globals": {}, "log": log, "config": file}


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        revision = versions()["build revision"]
        output.write(f"NVIDIA Container Toolkit CLI version {nvc.__version__}\ncommit: {revision}\n")
        ctx.exit()


@click.command("info", context_settings=CONTEXT)
@click.pass_context
def info(ctx: click.Context) -> None:
    """Show this program's help, as NVIDIA's does. `nvc-cli info` shows the driver and its GPUs."""
    output.write(tree.get_help(ctx.find_root()) + "\n")


@click.command("hook", context_settings={**CONTEXT, "ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="HOOK [OPTION...]", type=click.UNPROCESSED)
@click.pass_context
def hook(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Run a hook of a CDI specification, as nvidia-cdi-hook does.

    An OCI runtime calls it. The hooks and their options are those of nvc-cdi-hook(8).
    """
    hint = f"write `{program_of(ctx)} hook` in front"  # the launcher has passed on what begins so
    raise InputError("hook", " ".join(words), "takes no option before it but --debug and --quiet", hint)
