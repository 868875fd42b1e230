"""The usage text of `--usage` and of calls that lack a command or an argument; no click needed."""

from __future__ import annotations

from nvc_cli.options import FLAG, GLOBAL, HOT, OPTIONAL, SHOW

WIDTH = 79


def usage(program: str, command: str = "") -> str:
    """The usage of `program`, or of one of its hot commands, folded at 79 columns as argp does."""
    if command:
        options, tail, _ = HOT[command]
        head = f"Usage: {program} {command}"
    else:
        options, tail = GLOBAL, "COMMAND [ARG...]"
        head = f"Usage: {program}"
    letters = "".join(option[1] for option in options if option[2] in (FLAG, SHOW))
    words = [f"[-{letters}]"]
    for name, letter, kind, metavar, _ in options:
        value = ""
        if metavar:
            value = f"[={metavar}]" if kind == OPTIONAL else f"={metavar}"
        for one in letter if metavar else "":
            short = f"[{metavar}]" if kind == OPTIONAL else f" {metavar}"
            words.append(f"[-{one}{short}]")
        words.append(f"[--{name}{value}]")
    lines = [head]
    for word in (*words, *([tail] if tail else ())):
        if len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(" " * 11)
        lines[-1] += f" {word}"
    return "\n".join(lines) + "\n"


def hint(program: str, command: str = "") -> str:
    """Where to read on."""
    words = f"{program} {command}".strip()
    return f"Try `{words} --help' or `{words} --usage' for more information.\n"
