"""What somebody meant who wrote a command or an option that nvc-cli does not have. Only errors come here.

Some words of docker, kubectl, nvidia-ctk and nvidia-smi are looked up. Anything else is taken for a slip of the
keyboard if it is close enough to a name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Commands of nvc-cli, and words of other programs that mean the same.
COMMANDS = {
    "cdi generate": "generate",
    "doctor": "check diagnose status",
    "info": "devices gpus query smi",
    "runtime configure": "init install",
}
#: The same for slices, behind `vgpu` or without it.
SLICES = {
    "vgpu ls": "get ps slices",
    "vgpu rm": "delete remove",
    "vgpu run": "create start",
    "vgpu set": "edit limit update",
    "vgpu show": "describe inspect",
    "vgpu top": "dmon monitor pmon stats watch",
}
#: Words for what the container's engine does, or the shell: what to do instead.
ELSEWHERE = {
    **dict.fromkeys(
        ("kill", "stop"),
        "end it where it was started: `docker kill NAME`, or `kill PID` for a program (`nvc-cli vgpu show` has it)",
    ),
    **dict.fromkeys(
        ("attach", "exec"),
        "a container's engine does that: `docker exec NAME COMMAND`; it is in the container's slice",
    ),
    "rename": "a slice keeps the name that it was started with: `nvc-cli vgpu run --name NAME`",
    "logs": "a slice has no output of its own: `docker logs NAME`; `nvc-cli vgpu show` has what nvcd found of it",
}
#: By command: its own option or another call, and the options of other programs.
OPTIONS = {
    "": {"--root": "--driver-root", "nvc-cli info": "--query -q"},
    "configure": {"--device": "--gpu --gpus", "--vgpu-memory": "--memory"},
    "cdi generate": {
        "--device-id": "--device",
        "--hook-path": "--nvidia-ctk-path",
        "--library-directory": "--library-search-path",
        "nvc-cli --root PATH cdi generate": "--driver-root",
    },
    "runtime configure": {
        "--cdi": "--cdi.enabled --enable-cdi",
        "--engine": "--driver --runtime",
        "--hook-dir": "--oci-hook-path",
        "--remove": "--undo --uninstall",
        "--runtime-name": "--nvidia-runtime-name",
        "--runtime-path": "--nvidia-runtime-path",
        "--set-as-default": "--nvidia-set-as-default",
    },
    "cdi refresh": {"--output-dir": "--output"},
    "config set": {"nvc-cli config unset": "--remove --unset"},
    "vgpu ls": {"nvc-cli vgpu top": "--watch"},
    "vgpu run": {"--device": "--gpu --gpus -i", "--memory": "-m"},
}
#: Options that other programs have for every command that prints something.
FORMATS = {"--format json": "--json", "--format yaml": "--yaml", "--format": "--output"}


def command_hint(group: str, word: str, known: Iterable[str]) -> str:
    """What to write in place of the command `word` of `group`, or to do instead; "" where nothing comes near."""
    if group in ("", "vgpu") and word in ELSEWHERE:
        return ELSEWHERE[word]
    foreign = {"": {**COMMANDS, **SLICES}, "vgpu": SLICES}.get(group, {})
    near = _near(word, known)
    call = _foreign(foreign, word.lower()) or near and f"{group} {near}".strip()
    return f"did you mean `nvc-cli {call}`?" if call else ""


def option_hint(command: str, word: str, known: Iterable[str]) -> str:
    """What to write in place of the option `word` of `command`, as a question; "" where nothing comes near."""
    known = list(known)
    if command and word in ("--root", "--load-kmods", "--debug"):
        return f"global options come first: `nvc-cli {word}{' PATH' if word == '--root' else ''} {command}`"
    formats = FORMATS if "--format" in known else {}
    offer = _foreign({**OPTIONS.get(command, {}), **formats}, word)
    offer = offer or (_near(word, known) if word.startswith("--") else "")
    return f"did you mean `{offer}`?" if offer else ""


def _foreign(table: dict[str, str], word: str) -> str:
    return next((ours for ours, theirs in table.items() if word in theirs.split()), "")


def _near(word: str, known: Iterable[str]) -> str:
    """The name that somebody meant who mistyped or left off its end; "" where none comes near."""
    short = word.lstrip("-").lower()
    names = {name.lstrip("-"): name for name in sorted(known)}
    begun = [bare for bare in names if len(short) > 2 and bare.startswith(short)]
    near = begun or difflib.get_close_matches(short, names, 1, 0.65)
    return names[near[0]] if near else ""
