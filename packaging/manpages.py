"""Writes man pages and completion scripts. Usage: manpages.py DIRECTORY PYTHON_PATH...

nvc-cli(1), a page for each of its commands, and nvidia-ctk(1) come from command trees, so from what parser and
`--help` read; nvcd(8), nvc-kubelet-plugin(8), nvc-nri(8), nvc-hook(8), nvc-cdi-hook(8), first-container(8) and
nvc-spin(1) from their usage texts; nvc-runtime(8), whose `--help` is that of another runtime, from the text here.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import complete

if TYPE_CHECKING:
    import click

HEAD = '.TH {name} {section} "" "nvc {version}" "{manual}"\n'
MANUALS = {1: "User Commands", 8: "System Administration"}
FILES = """.SH FILES
.TP
.I /etc/nvc/config.toml
Settings of hooks, runtime and daemon; see
.BR nvc-cli-config (1).
.TP
.I /run/nvc
The inventory, the slices, and the sockets of nvcd.
"""
RUNTIME = """Usage: nvc-runtime [OPTION...] COMMAND [ARG...]

Runs containers as runc does, and gives them the GPUs that they ask for.
It takes the options and commands of runc, and passes them on to the first of
`runtimes` in /etc/nvc/config.toml that is installed (runc, crun). Before
`create` and `run`, it adds devices, files, hooks and rules to config.json of the
bundle, as the container's variables, annotations and CDI devices ask. To the
output of --version, it adds a line with nvc's version.

Register it with an engine: nvc-cli runtime configure --engine NAME
Errors go to standard error, and to the log that the engine names with --log.
For a log of nvc-runtime, set `debug` in [nvidia-container-runtime].
"""
STATUS = """.SH EXIT STATUS
.TP
0
done
.TP
1
failed, also for wrong arguments: standard error has one line
.TP
70
a bug in nvc; a traceback follows
.TP
130, 141
interrupted; the reader of the output has closed it
.PP
If a command has other exit codes, its description says so.
"""


def escape(text: str) -> str:
    """Text as roff takes it (groff_man(7)): no line begins with a control character."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("\b", "")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


def paragraphs(text: str) -> str:
    """A help text: what click is told not to fold stays as it is."""
    parts = []
    for part in inspect.cleandoc(text.replace("\f", "")).split("\n\n"):
        kept = part.startswith("\b")
        body = escape(part.lstrip("\b\n"))
        parts.append(f".PP\n.nf\n{body}\n.fi\n" if kept else f".PP\n{body}\n")
    return "".join(parts)


def bold(text: str) -> str:
    """One line in bold."""
    return f".B {escape(text)}\n"


def options(command: click.Command, context: click.Context, title: str = ".SH OPTIONS\n") -> str:
    """The options in the order of the help."""
    records = [item.get_help_record(context) for item in command.get_params(context)]
    rows = "".join(f".TP\n{bold(names)}{escape(text)}\n" for names, text in filter(None, records))
    return title + rows if rows else ""


def examples(command: click.Command) -> str:
    """The examples, as typed."""
    lines = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    body = "".join(f"{escape(line)}\n" for line in lines)
    return f".SH EXAMPLES\n.nf\n{body}.fi\n" if body else ""


def synopsis(command: click.Command, context: click.Context) -> str:
    """The first line of the help."""
    return bold(f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}")


def sections(group: click.Group, context: click.Context) -> str:
    """The commands of a command, each with its options."""
    import click

    text = ""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, context, name, **command.context_settings)
        text += f".SS {escape(name)}\n{synopsis(command, inner)}{paragraphs(command.help or '')}"
        text += options(command, inner, "")
        lines = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
        if lines:
            text += ".PP\nExamples:\n.PP\n.nf\n" + "".join(f"{escape(line)}\n" for line in lines) + ".fi\n"
        if isinstance(command, click.Group):
            text += sections(command, inner)
    return text


def page(name: str, section: int, summary: str, version: str, body: str) -> str:
    """A whole page."""
    head = HEAD.format(name=name.upper(), section=section, version=version, manual=MANUALS[section])
    summary = summary[:1].lower() + summary[1:] if not summary[1:2].isupper() else summary
    return f"{head}.SH NAME\n{name} \\- {escape(summary.rstrip('.'))}\n{body}"


def command_page(name: str, command: click.Command, context: click.Context, version: str, see: str) -> str:
    """The page of nvc-cli, of one of its commands, or of nvidia-ctk."""
    import click

    summary = (command.help or "").strip().split("\n")[0].lstrip("\b")
    body = f".SH SYNOPSIS\n{synopsis(command, context)}.SH DESCRIPTION\n{paragraphs(command.help or '')}"
    body += options(command, context)
    if name == "nvc-cli":
        assert isinstance(command, click.Group)
        body += ".SH COMMANDS\n"
        for inner in command.list_commands(context):
            body += f".TP\n.BR nvc\\-cli\\-{inner} (1)\n{escape(summary_of(command, context, inner))}\n"
    elif isinstance(command, click.Group):
        body += ".SH COMMANDS\n" + sections(command, context)
    body += examples(command) + STATUS + FILES + f".SH SEE ALSO\n{see}"
    return page(name, 1, summary, version, body)


def summary_of(tree: click.Group, context: click.Context, name: str) -> str:
    """One line about a command."""
    command = tree.get_command(context, name)
    return (command.help or "").strip().split("\n")[0] if command else ""


def usage_page(name: str, usage: str, version: str, section: int = 8, rest_of_page: str = FILES) -> str:
    """The page of a hook, or of another program: its usage text."""
    lines = usage.splitlines()
    at = lines.index("")
    call, rest = lines[:at], "\n".join(lines[at + 1 :]).strip()
    summary = rest.split(".")[0].replace("\n", " ")
    body = (
        f".SH SYNOPSIS\n.nf\n{escape(chr(10).join(call))}\n.fi\n.SH DESCRIPTION\n.nf\n{escape(rest)}\n.fi\n"
    )
    return page(name, section, summary, version, f"{body}{rest_of_page}.SH SEE ALSO\n.BR nvc\\-cli (1)\n")


def write(directory: str, name: str, text: str) -> None:
    """One file."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, name), "w", encoding="utf-8") as out:
        out.write(text)


def main(directory: str, *path: str) -> None:
    """All pages into DIRECTORY/man, scripts into DIRECTORY/completions."""
    sys.path[:0] = path
    import click

    import nvc
    from nvc_cli import completion, ctk, daemon, kubelet_plugin, nri
    from nvc_cli.main import tree
    from nvc_hooks import boot, cdi

    pages = os.path.join(directory, "man")
    root = click.Context(tree, info_name="nvc-cli", **tree.context_settings)
    names = [name for name in tree.list_commands(root) if name != "help"]
    see = "".join(f".BR nvc\\-cli\\-{name} (1),\n" for name in names) + ".BR nvc\\-hook (8)\n"
    write(pages, "nvc-cli.1", command_page("nvc-cli", tree, root, nvc.__version__, see))
    for name in names:
        command = tree.get_command(root, name)
        assert command is not None
        context = click.Context(command, root, name, **command.context_settings)
        text = command_page(f"nvc-cli-{name}", command, context, nvc.__version__, ".BR nvc\\-cli (1)\n")
        write(pages, f"nvc-cli-{name}.1", text)
    tool = click.Context(ctk.tree, info_name="nvidia-ctk", **ctk.tree.context_settings)
    see = ".BR nvc\\-cli (1),\n.BR nvc\\-cdi\\-hook (8)\n"
    write(pages, "nvidia-ctk.1", command_page("nvidia-ctk", ctk.tree, tool, nvc.__version__, see))
    write(pages, "nvc-hook.8", usage_page("nvc-hook", boot.USAGE, nvc.__version__))
    write(pages, "nvc-cdi-hook.8", usage_page("nvc-cdi-hook", cdi.USAGE, nvc.__version__))
    write(pages, "nvc-runtime.8", usage_page("nvc-runtime", RUNTIME, nvc.__version__))
    write(pages, "nvcd.8", usage_page("nvcd", daemon.USAGE, nvc.__version__))
    write(pages, "nvc-kubelet-plugin.8", usage_page("nvc-kubelet-plugin", kubelet_plugin.USAGE, nvc.__version__))
    write(pages, "nvc-nri.8", usage_page("nvc-nri", nri.USAGE, nvc.__version__))
    spin = told(os.path.join(path[0], "../../../bin/nvc-spin"))
    write(pages, "nvc-spin.1", usage_page("nvc-spin", spin, nvc.__version__, 1, ""))
    first = told(sys.executable, "-I", os.path.join(os.path.dirname(os.path.abspath(__file__)), "first-container"))
    write(pages, "first-container.8", usage_page("first-container", first, nvc.__version__))
    usages = {"nvcd": daemon.USAGE, "nvc-spin": spin, "first-container": first}
    for shell, name in (("bash", "{}"), ("zsh", "_{}"), ("fish", "{}.fish")):
        place = os.path.join(directory, "completions", shell)
        for program in ("nvc-cli", "nvidia-ctk"):
            write(place, name.format(program), completion.script(shell, program))
        for program, usage in usages.items():
            write(place, name.format(program), complete.script(shell, program, usage))


def told(*program: str) -> str:
    """The help of a program."""
    env = {**os.environ, "COLUMNS": "80"}
    return subprocess.run((*program, "--help"), check=True, stdout=subprocess.PIPE, text=True, env=env).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
