"""Writes man pages and completion scripts. Usage: manpages.py DIRECTORY PYTHON_PATH...

A page has what `--help` prints: nvc-cli(1), a page for each of its commands, nvidia-ctk(1), nvcd(8),
nvc-kubelet-plugin(8), nvc-nri(8), nvc-hook(8), nvc-cdi-hook(8), first-container(8) and nvc-spin(1). Only that of
nvc-runtime(8), whose `--help` is another runtime's, is from the text here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

MANUALS = {1: "User Commands", 8: "System Administration"}
WIDTH = 73  # columns of a help text: 80 with what man(1) indents
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
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


def page(name: str, section: int, usage: str, more: str, version: str, see: str = "nvc-cli(1)") -> str:
    """The page of a program or command: its help, whose first paragraph is the call, then `more`."""
    call, _, rest = usage.partition("\n\n")
    summary = " ".join(rest.strip().partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    summary = summary[:1].lower() + summary[1:] if not summary[1:2].isupper() else summary
    return (
        f'.TH {name.upper()} {section} "" "nvc {version}" "{MANUALS[section]}"\n'
        f".SH NAME\n{name} \\- {escape(summary)}\n"
        f".SH SYNOPSIS\n.nf\n{escape(call.removeprefix('Usage: '))}\n.fi\n"
        f".SH DESCRIPTION\n.nf\n{escape(rest.rstrip())}\n.fi\n{more}"
        f".SH SEE ALSO\n{escape(see)}\n"
    )


def helps(command: click.Command, name: str, above: click.Context | None = None) -> str:
    """The help of a command, and of those below it; nvc-cli's own have pages."""
    import click

    context = click.Context(
        command, above, name, terminal_width=WIDTH, **{**command.context_settings, "max_content_width": WIDTH}
    )
    text = command.get_help(context).replace("\b", "")
    if isinstance(command, click.Group) and name != "nvc-cli":
        below = ((inner, command.get_command(context, inner)) for inner in command.list_commands(context))
        text += "".join(f"\n\n\n{helps(inner, word, context)}" for word, inner in below if inner is not None)
    return text


def write(directory: str, name: str, text: str) -> None:
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

    root = click.Context(tree, info_name="nvc-cli")
    commands = {name: tree.get_command(root, name) for name in tree.list_commands(root) if name != "help"}
    here = os.path.dirname(os.path.abspath(__file__))
    services = {
        "nvc-hook": boot.USAGE,
        "nvc-cdi-hook": cdi.USAGE,
        "nvc-runtime": RUNTIME,
        "nvcd": daemon.USAGE,
        "nvc-kubelet-plugin": kubelet_plugin.USAGE,
        "nvc-nri": nri.USAGE,
        "first-container": told(sys.executable, "-I", os.path.join(here, "first-container")),
    }
    see = ", ".join((*(f"nvc-cli-{name}(1)" for name in commands), "nvc-hook(8)"))
    pages = {"nvc-cli.1": page("nvc-cli", 1, helps(tree, "nvc-cli"), STATUS + FILES, nvc.__version__, see)}
    for name, command in commands.items():
        assert command is not None
        text = helps(command, name, root)
        pages[f"nvc-cli-{name}.1"] = page(f"nvc-cli-{name}", 1, text, STATUS + FILES, nvc.__version__)
    text = helps(ctk.tree, "nvidia-ctk")
    pages["nvidia-ctk.1"] = page("nvidia-ctk", 1, text, STATUS + FILES, nvc.__version__)
    spin = told(os.path.join(path[0], "../../../bin/nvc-spin"))
    pages["nvc-spin.1"] = page("nvc-spin", 1, spin, "", nvc.__version__)
    for name, usage in services.items():
        pages[f"{name}.8"] = page(name, 8, usage, FILES, nvc.__version__)
    for name, text in pages.items():
        write(os.path.join(directory, "man"), name, text)
    for shell, name in (("bash", "{}"), ("zsh", "_{}"), ("fish", "{}.fish")):
        for program in ("nvc-cli", "nvidia-ctk"):
            place = os.path.join(directory, "completions", shell)
            write(place, name.format(program), completion.script(shell, program))


def told(*program: str) -> str:
    env = {**os.environ, "COLUMNS": "80"}
    return subprocess.run((*program, "--help"), check=True, stdout=subprocess.PIPE, text=True, env=env).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
