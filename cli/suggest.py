"""What somebody meant who wrote a command or an option that nvc-cli does not have. Only errors come here.

Words of docker, kubectl, nvidia-ctk, nvidia-smi and nvidia-container-cli are looked up; anything else is taken for
a slip of the keyboard if it is close enough to a name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: By group, "" for nvc-cli itself: words of nvc-cli, and those of other programs that mean the same.
COMMANDS: dict[str, dict[str, str]] = {
    "": {
        "cdi generate": "generate",
        "cdi validate": "validate",
        "config set": "edit",
        "--load-kmods info": "system",
        "doctor": "check diagnose status",
        "info": "device devices gpus mig query smi",
        "list": "files",
        "runtime configure": "init install",
        "sim create": "simulate",
        "vgpu advise": "advice advise recommend",
        "vgpu ls": "get ls ps slices",
        "vgpu pause": "pause",
        "vgpu policy": "policy",
        "vgpu report": "report",
        "vgpu resume": "resume unpause",
        "vgpu rm": "delete remove rm",
        "vgpu run": "create run slice start",
        "vgpu set": "limit set update",
        "vgpu show": "describe inspect show",
        "vgpu trace": "timeline",
        "vgpu top": "dmon events monitor pmon stats top watch",
    },
    "vgpu": {
        "vgpu advise": "advice recommend",
        "help vgpu": "help",
        "vgpu check": "verify",
        "vgpu ls": "get list ps",
        "vgpu resume": "unpause",
        "vgpu rm": "delete remove",
        "vgpu rm --gone": "prune",
        "vgpu run": "add create start",
        "vgpu set": "edit limit scale update",
        "vgpu show": "describe info inspect",
        "vgpu trace": "timeline",
        "vgpu top": "dmon events monitor pmon stats watch",
    },
    "cdi": {
        "help cdi": "help",
        "cdi generate": "create",
        "cdi list": "devices get inspect ls ps show",
        "cdi refresh": "apply update",
        "cdi transform root": "root",
        "cdi validate": "check verify",
    },
    "config": {
        "config check": "path validate",
        "config set": "edit update",
        "config show": "default describe inspect list ls view",
        "config unset": "delete remove rm",
        "help config": "help",
    },
    "runtime": {
        "help runtime": "help",
        "runtime configure": "add config create install register set",
        "runtime configure --remove": "remove rm uninstall unregister",
    },
    "sim": {
        "help sim": "help",
        "sim create": "add make new",
        "sim destroy": "delete remove rm",
        "sim show": "describe get info inspect list ls ps status",
    },
}
#: Words for what the container's engine does, or the shell: what to do instead. For nvc-cli itself and for `vgpu`.
ELSEWHERE = {
    **dict.fromkeys(
        ("kill", "stop"),
        "end it where it was started: `docker kill NAME`, or `kill PID` for a program (`nvc-cli vgpu show` has it)",
    ),
    **dict.fromkeys(
        ("attach", "exec"),
        "a container's engine does that: `docker exec NAME COMMAND`; it is in the container's slice",
    ),
    "logs": "a slice has no output of its own: `docker logs NAME`; `nvc-cli vgpu show` has what nvcd found of it",
    "rename": "a slice is called as its container: `docker rename`; a program as `nvc-cli vgpu run --name` says",
}
#: The same for options, by command: its own option or another call, and the options of other programs.
OPTIONS: dict[str, dict[str, str]] = {
    "": {
        "--debug": "--verbose",
        "--root": "--driver-root",
        "nvc-cli config show": "--config",
        "nvc-cli configure --device": "--gpus",
        "nvc-cli info": "--query -q",
        "nvc-cli info --format json": "--json --query-gpu",
        "nvc-cli info --format table": "--list-gpus -L",
    },
    "info": {
        "--csv": "--query-gpu",
        "--format table": "--list-gpus -L",
        "nvc-cli info": "-q",
    },
    "list": {
        "--device": "--gpu --gpus",
        "--device all": "--all -a",
    },
    "configure": {
        "--compute": "--capabilities",
        "--device": "--gpu --gpus",
        "--require": "--requires",
        "--vgpu-cores": "--cores",
        "--vgpu-memory": "--memory",
        "--vgpu-policy": "--policy",
        "--vgpu-uncounted": "--uncounted",
        "--vgpu-weight": "--weight",
    },
    "cdi generate": {
        "--capabilities": "--driver-capabilities",
        "--device-id": "--device --gpus",
        "--hook-path": "--nvidia-ctk-path",
        "--library-directory": "--library-search-path",
        "--vendor": "--kind",
        "nvc-cli --root PATH cdi generate": "--driver-root",
    },
    "cdi list": {
        "--spec-dir": "--cdi-spec-dir --directory",
    },
    "runtime configure": {
        "--cdi": "--cdi.enabled --enable-cdi",
        "--config": "--config-file",
        "--engine": "--driver --runtime",
        "--hook-dir": "--oci-hook-path",
        "--remove": "--delete --undo --uninstall",
        "--runtime-name": "--name --nvidia-runtime-name",
        "--runtime-path": "--nvidia-runtime-path --path",
        "--set-as-default": "--default --nvidia-set-as-default",
    },
    "vgpu run": {
        "--cores": "--cpus --vgpu-cores",
        "--device": "--gpu --gpus -i",
        "--memory": "--gpu-memory --mem --vgpu-memory -m",
        "--policy": "--vgpu-policy",
        "--user": "-u",
        "--weight": "--vgpu-weight",
    },
    "vgpu set": {
        "--cores": "--cpus",
        "--device": "--gpus",
        "--memory": "--mem -m",
    },
    "vgpu ls": {
        "nvc-cli vgpu top": "--watch -w",
    },
    "vgpu rm": {
        "--force": "-f",
        "--gone": "--all -a",
    },
    "vgpu top": {
        "--once": "--no-stream -1",
    },
    "config set": {
        "--file": "--config-file -f",
        "nvc-cli config set": "--in-place",
        "nvc-cli config unset": "--unset",
    },
    "config show": {
        "--file": "--config-file -f",
        "--origin": "--show-origin",
    },
    "config": {
        "nvc-cli config set": "--in-place --set",
        "nvc-cli config show --file": "--config-file",
    },
    "doctor": {
        "--all": "--verbose -a -v",
    },
    "sim create": {
        "--driver-version": "--driver",
        "--gpus": "--count",
        "--memory": "--size",
        "--model": "--type",
    },
}
#: Options that other programs have for every command that prints something.
FORMATS = {"--format json": "--json", "--format yaml": "--yaml", "--format": "--output"}


def command_hint(group: str, word: str, known: Iterable[str]) -> str:
    """What to write in place of the command `word` of `group`, or to do instead; "" where nothing comes near."""
    if group in ("", "vgpu") and word in ELSEWHERE:
        return ELSEWHERE[word]
    there = _foreign(COMMANDS.get(group, {}), word.lower())
    near = [there] if there else [f"{group} {name}".strip() for name in _near(word, known)]
    return _question([f"nvc-cli {call}" for call in near])


def option_hint(command: str, word: str, known: Iterable[str]) -> str:
    """What to write in place of the option `word` of `command`, as a question; "" where nothing comes near."""
    known = list(known)
    there = _foreign(OPTIONS.get(command, {}), word)
    if not there and "--format" in known:
        there = _foreign(FORMATS, word)
    if there:
        return _question([there])
    return _question(_near(word, known) if word.startswith("--") else [])


def _foreign(table: dict[str, str], word: str) -> str:
    return next((ours for ours, theirs in table.items() if word in theirs.split()), "")


def _question(offers: list[str]) -> str:
    return f"did you mean {' or '.join(f'`{offer}`' for offer in offers)}?" if offers else ""


def _near(word: str, known: Iterable[str]) -> list[str]:
    """The name that somebody meant who mistyped or left off its end."""
    short = word.lstrip("-").lower()
    names = {name.lstrip("-"): name for name in sorted(known)}
    begun = [bare for bare in names if len(short) > 2 and bare.startswith(short)]
    return [names[bare] for bare in begun[:1] or difflib.get_close_matches(short, names, 1, 0.65)]
