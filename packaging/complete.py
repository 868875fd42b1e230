"""Completion scripts of programs whose `--help` is a text: what their options are, for bash, zsh and fish."""

from __future__ import annotations

import re

#: `  -m, --memory SIZE     text`, as usage texts and argparse have it; a text may begin in the next line.
OPTION = re.compile(
    r"^  (?:-(?P<letter>\w)(?: [A-Z_]+)?, )?(?P<long>--[a-z-]+)(?:[ =](?P<value>[A-Z_]+)| \[[A-Z]+\])?"
    r"(?:, -(?P<after>\w))?(?: {2,}(?P<text>\S.*))?$",
    re.MULTILINE,
)
FILES = ("FILE", "DIR", "PROGRAM")


def options_of(usage: str) -> list[tuple[str, str, str, str]]:
    """Letter, long name, what its value is called, and text of each option; "" for what there is not."""
    return [
        (one["letter"] or one["after"] or "", one["long"], one["value"] or "", (one["text"] or "").rstrip(" ;,("))
        for one in OPTION.finditer(usage)
    ]


def script(shell: str, program: str, usage: str) -> str:
    """What makes `shell` complete the options of `program`; elsewhere it offers files."""
    made = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](program, options_of(usage))
    runs = shell == "zsh" and usage.partition("\n\n")[0].endswith(" ...")  # another program
    return made.rstrip("\n") + " \\\n    '*:: :_normal'\n" if runs else made


def _bash(program: str, options: list[tuple[str, str, str, str]]) -> str:
    words = [word for letter, long, _, _ in options for word in (long, f"-{letter}") if word != "-"]
    return f"complete -o default -W '{' '.join(words)}' {program}\n"


def _zsh(program: str, options: list[tuple[str, str, str, str]]) -> str:
    lines = []
    for letter, long, value, text in options:
        told = re.sub(r"([\[\]:'\\])", "", text)
        names = f"{{-{letter},{long}}}" if letter else long
        action = f":{value}:{'_files' if value in FILES else ' '}" if value else ""
        lines.append(f" \\\n    {names}'[{told}]{action}'")
    return f"#compdef {program}\n_arguments{''.join(lines)}\n"


def _fish(program: str, options: list[tuple[str, str, str, str]]) -> str:
    lines = []
    for letter, long, value, text in options:
        told = text.replace("\\", "").replace("'", "\\'")
        words = [f"-l {long[2:]}", f"-s {letter}" if letter else "", "-r" if value else "", f"-d '{told}'"]
        lines.append(f"complete -c {program} {' '.join(filter(None, words))}\n")
    return "".join(lines)
