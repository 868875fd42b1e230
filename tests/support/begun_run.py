"""`vgpu run` without the start of nvc-cli, for the many tests that are about what runs in a slice.

A process that has imported nvc-cli forks, takes the test's ends of pipes by their descriptors in /proc, and goes on
as the launcher lets Python go on, with the caller's environment in a file. test_vgpu_run.py starts the stage's own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from . import STAGE
from .begun import IMPORTED, Forking, at_home, placed, shared_of
from .forked import Forked

OPTIONS = {"stdin", "stdout", "stderr", "text", "pass_fds"}
SERVER = """
for name in modules:
    importlib.import_module(name)
from nvc_cli.boot import main
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):
        answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
    else:
        taken, taking = os.pipe()
        answer = os.fork()
        if answer == 0:
            paths, directory, place, carried, sys.argv[1:] = asked
            for number, path in enumerate(paths):
                os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY), number)
            os.write(taking, b"x")
            os.closerange(3, 1 << 12)
            file = os.memfd_create("environment", 0)
            os.write(file, carried.encode("utf-8", "surrogateescape"))
            os.environ["NVC_CALLERS_ENVIRONMENT"] = str(file)
            if place:
                enter(place)
            os.chdir(directory)
            try:
                main("nvc-cli")
            except SystemExit as end:
                sys.stdout.flush()
                os._exit(end.code)
        os.close(taking)
        os.read(taken, 1)
        os.close(taken)
    print(answer, flush=True)
"""


class Runner(Forking):
    """The process that forks them."""

    server, modules = SERVER, (*IMPORTED, "nvc_cli.caller_environment")


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
    server = shared_of(Runner, STAGE)
    made = Forked(server, server.ask([paths, os.getcwd(), place, carried, command[1:]]))
    for descriptor in theirs:
        os.close(descriptor)
    for name, descriptor, mode in ours:
        plain = {"buffering": -1, "encoding": "utf-8"} if options.get("text") else {"buffering": -1}
        stream = os.fdopen(descriptor, mode if options.get("text") else f"{mode}b", **plain)
        setattr(made, name, stream)
    return made
