"""`vgpu run` without the start of nvc-cli, for the many tests that are about what runs in a slice."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from . import STAGE
from .begun import at_home, placed
from .forked import fork

OPTIONS = {"stdin", "stdout", "stderr", "text", "pass_fds"}


def is_run(words: Sequence[str]) -> bool:
    """Whether it is `vgpu run` of the staged nvc-cli, with global options that say where the driver is."""
    rest = list(words[1:])
    while rest and rest[0].startswith("--root="):
        rest = rest[1:]
    return words[:1] == [f"{STAGE}/bin/nvc-cli"] and rest[:2] == ["vgpu", "run"]


def started(words: Sequence[str], env: Mapping[str, str], **options: Any) -> Any:
    """Start a program; the options are Popen's. Returns what has Popen's methods."""
    place, command = placed(words)
    if not at_home() or not is_run(command) or set(options) - OPTIONS or options.get("pass_fds"):
        return subprocess.Popen(words, env=env, **options)
    ours: list[tuple[str, int, str]] = []
    theirs: list[int] = []
    paths = []
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        wanted = options.get(name)
        if wanted == subprocess.PIPE:
            read, write = os.pipe2(os.O_CLOEXEC)
            ours.append((name, write, "w") if number == 0 else (name, read, "r"))
            theirs.append(read if number == 0 else write)
            wanted = theirs[-1]
        elif wanted == subprocess.DEVNULL:
            wanted = -1
        elif wanted is None:
            wanted = number
        elif not isinstance(wanted, int):
            wanted = wanted.fileno()
        paths.append("/dev/null" if wanted < 0 else f"/proc/{os.getpid()}/fd/{wanted}")
    carried = "".join(f"{name}={value}\0" for name, value in env.items())
    made = fork(STAGE, "nvc-cli", command[1:], paths, place, carried=carried)
    for descriptor in theirs:
        os.close(descriptor)
    for name, descriptor, mode in ours:
        plain = {"buffering": -1, "encoding": "utf-8"} if options.get("text") else {"buffering": -1}
        stream = os.fdopen(descriptor, mode if options.get("text") else f"{mode}b", **plain)
        setattr(made, name, stream)
    return made
