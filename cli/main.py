"""click's command tree: help, completion and every command that need not start fast.

The hot commands are in it too, built from the tables that the fast parser reads, for their help and for
completion; `boot` runs them without coming here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from nvc.base.errors import InputError, UsageError
from nvc.base.program import Silent
from nvc.frontends.configure import RunLog
from nvc.model.slices.policy import CHOICES
from nvc_cli import arguments, output
from nvc_cli.boot import Session
from nvc_cli.completion import command_words, complete
from nvc_cli.helptext import DESCRIPTIONS, EXAMPLES
from nvc_cli.options import FLAG, GLOBAL, HOT, OMITTED, OPTIONAL, REPEATED, SHOW, Option, dest
from nvc_cli.parse import CommandLine, Values, Words
from nvc_cli.suggest import command_hint, option_hint
from nvc_cli.usage import usage

#: Commands beyond the hot ones: where the click command is, and its line in the help.
LAZY = {
    "sim": ("nvc_cli.sim", "sim", "Make driver roots of simulated GPUs"),
    "cdi": ("nvc_cli.cdi", "cdi", "Describe devices for engines (Container Device Interface)"),
    "runtime": ("nvc_cli.runtime", "runtime", "Register nvc with container engines"),
    "vgpu": ("nvc_cli.vgpu", "vgpu", "Run programs in slices of a GPU, and manage slices"),
    "config": ("nvc_cli.config", "config", "Show, change and check the configuration file"),
    "doctor": ("nvc_cli.doctor", "doctor", "Find what is wrong here, and how to fix it"),
    "explain": ("nvc_cli.explain", "explain", "Explain the code of an error"),
    "version": ("nvc_cli.main", "version_command", "Show the version"),
    "completion": ("nvc_cli.completion", "completion", "Print a completion script for a shell"),
    "help": ("nvc_cli.main", "help_command", "Show the help of a command"),
}

COMPLETE_VARIABLE = "_NVC_CLI_COMPLETE"
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "-?", "--help"], "max_content_width": output.WIDTH}


def run(program: str, line: CommandLine) -> int:
    """Run any command by click; the exit code is returned. Raises NvcError, for a wrong call too."""
    argv = respelled(line.globals.values)
    if line.globals.show:
        argv.append(f"--{line.globals.show}")
    elif line.command:
        argv += [line.command, *([f"--{line.show}"] if line.show else line.globals.rest[1:])]
    return call(tree, program, argv, line.command)


def call(group: click.Group, program: str, argv: list[str], command: str = "") -> int:
    """Run what `argv` says of `group`; the exit code is returned. Raises NvcError, for a wrong call too."""
    try:
        # What a command gave to `ctx.exit` comes back as a value.
        code = group.main(argv, prog_name=program, complete_var=COMPLETE_VARIABLE, standalone_mode=False)
    except (click.exceptions.Exit, SystemExit) as end:
        code = end.exit_code if isinstance(end, click.exceptions.Exit) else end.code
        return code if isinstance(code, int) else 0
    except click.Abort:
        raise KeyboardInterrupt from None
    except _ReaderGone:
        raise BrokenPipeError from None
    except OSError as error:
        if _is_of_click(error):  # which prints help texts itself
            raise output.OutputError.of("write", "standard output", error) from None
        raise
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command
        output.write(error.ctx.get_help() + "\n")
        return 0
    except click.ClickException as error:
        raise _refused(f"{program} {command}".strip(), error) from None
    return code if isinstance(code, int) else 0


def _is_of_click(error: OSError) -> bool:
    """Whether click's own output failed."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_globals.get("__name__") == "click.utils"


def _refused(call: str, error: click.ClickException) -> InputError:
    """The one line for what click says of a wrong call; `call` is what is known of it."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    words = ctx.command_path if ctx is not None else call
    path = words.partition(" ")[2]
    hint = f"see `{words} --help`"
    if ctx is not None and isinstance(error, click.exceptions.NoSuchCommand):
        known = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []
        near = command_hint(path, error.command_name, known)
        return UsageError("unknown command", cause=f"{path} {error.command_name}".strip(), hint=near or hint)
    if ctx is not None and isinstance(error, click.exceptions.NoSuchOption):
        known = [name for param in ctx.command.get_params(ctx) for name in param.opts if name[:2] == "--"]
        near = option_hint(path, error.option_name, known)
        return InputError(f"unrecognized option '{error.option_name}'", hint=near or hint)
    return InputError(" ".join(error.format_message().split()).rstrip("."), hint=hint)


def respelled(values: Values) -> list[str]:
    """Option values as words that click reads as argp would: long names in full, values attached."""
    words = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        for item in value if isinstance(value, list) else [value]:
            words.append(option if item is True else f"{option}={item}")
    return words


def examples(*lines: str) -> dict[str, Any]:
    """The settings of a command or group whose help ends with examples."""
    text = "".join(f"\n  {line}" for line in lines)
    return {"context_settings": CONTEXT, "epilog": f"\b\nExample{'s' if len(lines) > 1 else ''}:{text}"}


class Examples(click.Command):
    """A command whose help ends with examples, as they are to be typed; their title is not indented, as others."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are."""
        if self.epilog:
            formatter.write("\n" + self.epilog.lstrip("\b\n") + "\n")


def command(name: str, *lines: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command of no group yet, whose help ends with examples."""
    return click.command(name, cls=Examples, **examples(*lines))


class _Group(Examples, click.Group):
    """A group whose help has its commands before its options."""

    command_class = Examples
    order: tuple[str, ...] = ()  # of its commands in help; others follow by name

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands as help has them."""
        first = [name for name in self.order if name in self.commands]
        return first + [name for name in super().list_commands(ctx) if name not in first]

    def summary(self, ctx: click.Context, name: str) -> str:
        raise NotImplementedError

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(ctx, name)) for name in self.list_commands(ctx)])
        click.Command.format_options(self, ctx, formatter)


class Commands(_Group):
    """A group in whose help each command has its first sentence, however long: click would cut it off."""

    def summary(self, ctx: click.Context, name: str) -> str:
        """The first sentence of a command."""
        command = self.get_command(ctx, name)
        assert command is not None and command.help is not None
        text = " ".join(command.help.partition("\n\n")[0].split())
        return text.partition(". ")[0].rstrip(".")


class _ReaderGone(Exception):
    """A broken pipe, which click itself would make an exit with 1."""


class LazyGroup(_Group):
    """Commands that are imported when they are run; their summaries are known without that."""

    lazy: dict[str, tuple[str, str, str]] = {}  # in the shape of LAZY

    def make_context(self, *words: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*words, **more)
        except BrokenPipeError:  # of a help
            raise _ReaderGone from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.lazy:
            return None
        module, name, _ = self.lazy[cmd_name]
        return getattr(importlib.import_module(module), name)

    def summary(self, ctx: click.Context, name: str) -> str:
        return self.lazy[name][2]


class _Tree(LazyGroup):
    lazy = LAZY

    def summary(self, ctx: click.Context, name: str) -> str:
        return HOT[name][2] if name in HOT else super().summary(ctx, name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*HOT, *LAZY]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return hot_command(cmd_name) if cmd_name in HOT else super().get_command(ctx, cmd_name)


def parameter(option: Option) -> click.Option:
    """The click option for one line of a table."""
    name, letter, kind, metavar, text = option
    text = text.replace("{policies}", CHOICES)
    names = [f"--{name}", *(f"-{one}" for one in letter), dest(option)]
    if kind == SHOW:
        show = _show_version if name == "version" else _show_usage
        return click.Option(names, is_flag=True, is_eager=True, expose_value=False, help=text, callback=show)
    if kind == FLAG:
        return click.Option(names, is_flag=True, help=text)
    if kind == OPTIONAL:
        return click.Option(names, is_flag=False, flag_value=OMITTED, metavar=metavar, help=text)
    return click.Option(
        names, multiple=kind == REPEATED, metavar=metavar, help=text, shell_complete=complete(name)
    )


def parameters(options: tuple[Option, ...]) -> list[click.Parameter]:
    """The click options for a table; --help is click's own."""
    return [parameter(option) for option in options if option[0] != "help"]


def given_values(params: dict[str, Any]) -> Values:
    """click's values in the shape of the fast parser's: what was not given is absent."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in params.items()
        if value not in (None, False, ())
    }


def hot_command(name: str) -> click.Command:
    """The click command for one entry of HOT."""
    options, argument, _ = HOT[name]
    params = parameters(options)
    if argument:
        params.append(click.Argument(["words"], metavar=argument, type=click.Path()))

    @click.pass_context
    def callback(ctx: click.Context, /, words: str = "", **params: Any) -> None:
        values = given_values(params)
        given = Words(values, (words,) if argument else (), tuple((key, 1) for key in values))
        module = importlib.import_module(f"nvc_cli.{name}")
        module.run(Session(program_of(ctx), name, ctx.obj["globals"], given, ctx.obj["log"]))

    return Examples(name, callback=callback, params=params, help=DESCRIPTIONS[name], **examples(*EXAMPLES[name]))


def format_option(*human: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """--format and -o: one of the forms `human`, the first by default, or json or yaml."""
    kinds = click.Choice((*human, "json", "yaml"))
    return click.option(
        "--format", "-o", "form", default=human[0], show_default=True, type=kinds, help="Output format."
    )


def flag(*words: str, **more: Any) -> Callable[[Any], Any]:
    """An option without a value: its names and its help."""
    return click.option(*words[:-1], is_flag=True, help=words[-1], **more)


def value(*words: str, default: Any = "", **more: Any) -> Callable[[Any], Any]:
    """An option with a value: its names, what the value is called, and its help, which also has the default."""
    *names, metavar, text = words
    return click.option(*names, default=default, show_default=bool(default), metavar=metavar, help=text, **more)


def filled(ctx: click.Context, param: click.Parameter, found: Any) -> Any:
    """A value that must not be empty: it is then a variable of a script that was not set. Raises InputError."""
    if found == "" and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
        raise InputError(param.opts[0] if param.opts[0][0] == "-" else str(param.metavar), cause="empty",
                         hint="leave it out for the default")  # fmt: skip
    return found


def values(*words: str, **more: Any) -> Callable[[Any], Any]:
    """An option with a value that may be repeated, likewise."""
    *names, metavar, text = words
    return click.option(*names, multiple=True, metavar=metavar, help=text, **more)


class Seconds(click.FloatRange):
    """A duration within bounds. Not "nan", which no bound keeps out."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a number of seconds. Raises click.BadParameter."""
        found = float(super().convert(value, param, ctx))
        if found != found:
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return found


def program_of(ctx: click.Context) -> str:
    """The name that the program was started under."""
    return ctx.find_root().info_name or "nvc-cli"


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from nvc_cli.version import version_text

        output.write(version_text())
        ctx.exit()


def _show_usage(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        output.write(usage(program_of(ctx), "" if ctx.parent is None else ctx.info_name or ""))
        ctx.exit()


@click.pass_context
def _enter(ctx: click.Context, /, **params: Any) -> None:
    """Leave for the command in `ctx.obj`: globals, which make sense, and the log."""
    values = given_values(params)
    log: RunLog = Silent()
    if "debug" in values:
        from nvc_cli.debuglog import open_log

        log = open_log(program_of(ctx), str(values["debug"]))
        log.step(f"{ctx.invoked_subcommand}")
    arguments.driver_options(values, configured=False)
    ctx.obj = {"globals": values, "log": log}


tree = _Tree(
    "nvc-cli",
    callback=_enter,
    params=parameters(GLOBAL),
    help=DESCRIPTIONS[""],
    subcommand_metavar="COMMAND [ARG...]",
    **examples(*EXAMPLES[""]),
)


@click.command("help", help="Show the help of a command.", context_settings=CONTEXT)
@click.argument("command", nargs=-1, shell_complete=command_words)
@click.pass_context
def help_command(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Walk down the tree by name, then print the help found there."""
    at: click.Command = tree
    here = click.Context(tree, info_name=program_of(ctx), **CONTEXT)
    for word in command:
        found = at.get_command(here, word) if isinstance(at, click.Group) else None
        if found is None:
            raise click.exceptions.NoSuchCommand(word, ctx=here)
        at, here = found, click.Context(found, here, word, **found.context_settings)
    output.write(at.get_help(here) + "\n")


@click.command("version", help="Show the version of nvc, and how it was built.", context_settings=CONTEXT)
@format_option("text", "table")
def version_command(form: str) -> None:
    """Print what --version prints."""
    from nvc.base.columns import fitted
    from nvc_cli.version import version_document, version_text, versions

    rows = [("NAME", "VALUE"), *versions().items()]
    output.show(form, version_document, lambda width: fitted(rows, width), version_text)
