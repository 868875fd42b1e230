"""nvc-cli without its start, for tests that call it often: a process has imported it, and forks for each call.

cli = Begun("/usr/local", host.namespace)
cli("doctor", "driver").stdout

`run` of this package takes that way by itself for commands in CALLED. How nvc-cli itself starts, other tests try.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any, TypeVar

from . import CLEAN_ENV, STAGE
from .processes import SHARED

#: Modules that the calls need.
IMPORTED = (
    *("nvc_cli.doctor", "nvc.doctor.catalog", "nvc.discovery.containers.running", "nvc.discovery.full", "tomlkit"),
    *("nvc_cli.cdi", "nvc_cli.config", "nvc_cli.vgpu", "nvc.discovery.find", "nvc.slices.admin.device_policy"),
    *("nvc.slices.make.run", "nvc.slices.show.tables", "nvc.slices.store.status"),
    *("nvc.frontends.cdi.generate", "nvc.frontends.cdi.sliced", "nvc_cli.runtime", "nvc_cli.cdi_inspect"),
    *("nvc_cli.ctk", "nvc_cli.ctk_cdi", "nvc_cli.ctk_config", "nvc_cli.ctk_runtime", "nvc_cli.ctk_system"),
)
#: Where the function is that each program begins with.
MAIN = {"nvc-cli": "nvc_cli.boot", "nvidia-ctk": "nvc_cli.ctk"}
#: Commands of the staged nvc-cli whose start says nothing of what a test asks.
CALLED = {"cdi", "config", "doctor", "explain", "help", "runtime", "vgpu"}
#: Words of these that start a program, or wait.
STARTING = {"run", "top", "check", "advise", "report", "trace", "calibrate"}
#: The beginning of a program that is run as the launcher runs Python; its words are the installation's prefix and
#: names of modules.
HEAD = """
import os
import sys
prefix, *modules = sys.argv[1:]
with open(f"{prefix}/lib/nvc/launch.conf") as file:
    lines = [line.rstrip("\\n").partition(" ") for line in file]
sys.path += [f"{prefix}/lib/nvc/python", *(value for name, _, value in lines if name == "path")]
import ctypes, importlib, json
def enter(pid):
    if ctypes.CDLL(None).setns(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), 0):
        os._exit(99)
"""
SERVER = """
for name in modules:
    importlib.import_module(name)
for line in sys.stdin:
    files = [os.memfd_create(name) for name in ("stdout", "stderr")]
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
        os.closerange(3, max(files) + 1)
        module, program, directory, place, sys.argv[1:] = json.loads(line)
        if place:
            enter(place)
        os.chdir(directory)
        try:
            importlib.import_module(module).main(program)
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code)
    status = os.waitpid(pid, 0)[1]
    texts = [os.pread(file, 1 << 24, 0).decode() for file in files]
    for file in files:
        os.close(file)
    print(json.dumps([os.waitstatus_to_exitcode(status), *texts]), flush=True)
"""


#: Processes of installations, by what each is for and the prefix.
_SHARED: dict[tuple[str, str], Forking] = {}
#: The process of tests that has them.
_OWNER = 0


def _cgroup() -> str:
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        return file.read()


_HOME = _cgroup()


def shared_of(kind: type[Kind], prefix: str) -> Kind:
    """The one of a class that this process of tests has for an installation, in its own mount namespace."""
    found = _SHARED.get((kind.__name__, prefix)) or kind(prefix)
    _SHARED[kind.__name__, prefix] = found
    assert isinstance(found, kind)
    return found


def shared(prefix: str) -> Begun:
    """The one of nvc-cli."""
    return shared_of(Begun, prefix)


def at_home() -> bool:
    """Whether what they fork is as if this process had started it: not for children, nor in a cgroup of a test."""
    return (os.getpid(), os.geteuid(), _cgroup()) == (_OWNER, 0, _HOME) and "NVC_STAGE" not in os.environ


def placed(words: Sequence[str | os.PathLike[str]]) -> tuple[str, list[str]]:
    """The process whose mount namespace a command line enters, "" for none, and what it does there."""
    said = [str(word) for word in words]
    if said[:2] == ["nsenter", "-t"] and said[3:4] == ["-m"]:
        return said[2], said[4:]
    return "", said


def takes(words: Sequence[str]) -> bool:
    """Whether this process can have the answer of that command line from `shared`."""
    if words[:1] != [f"{STAGE}/bin/nvc-cli"] or not at_home():
        return False
    rest = words[1:]
    while rest and rest[0].startswith("--root"):
        rest = rest[1 if "=" in rest[0] else 2 :]
    return bool(rest) and rest[0] in CALLED and not STARTING.intersection(rest)


def begin_shared() -> None:
    """Where a process of tests begins."""
    global _OWNER
    _OWNER = os.getpid()


def end_shared() -> None:
    """Where this process of tests ends."""
    while _SHARED:
        _SHARED.popitem()[1].end()


class Forking:
    """A process that has imported modules of an installation, and forks.

    `prefix` is the installation's, `enter` the argv that runs a program where it is to be.
    """

    server = ""
    modules: tuple[str, ...] = ()

    def __init__(self, prefix: str, enter: Sequence[str] = ()) -> None:
        conf = subprocess.run(
            [*enter, "cat", f"{prefix}/lib/nvc/launch.conf"],
            env=CLEAN_ENV,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        interpreter = next(
            line.split(" ", 1)[1] for line in conf.splitlines() if line.startswith("interpreter ")
        )
        self._process = subprocess.Popen(
            [*enter, interpreter, "-I", "-S", "-B", "-c", HEAD + self.server, prefix, *self.modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=CLEAN_ENV,
        )  # fmt: skip
        SHARED.add(self._process.pid)

    def ask(self, question: object) -> Any:
        """Its answer to one line."""
        sent, answered = self._process.stdin, self._process.stdout
        assert sent is not None and answered is not None
        sent.write(json.dumps(question) + "\n")
        sent.flush()
        line = answered.readline()
        assert line, "it has ended"
        return json.loads(line)

    def end(self) -> None:
        """End it."""
        SHARED.discard(self._process.pid)
        self._process.communicate()


Kind = TypeVar("Kind", bound=Forking)


class Begun(Forking):
    """That of nvc-cli."""

    server, modules = SERVER, IMPORTED

    def __call__(
        self, *words: str, check: bool = True, program: str = "nvc-cli", place: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """What nvc-cli does with these words, with a bare environment and without standard input.

        `check`: exit 0 is expected. `program`: the name under which it is called. `place`: the process whose mount
        namespace it enters.
        """
        code, stdout, stderr = self.ask([MAIN[program], program, os.getcwd(), place, words])
        assert code == 0 or not check, f"{words}: exit {code}\n{stdout}{stderr}"
        return subprocess.CompletedProcess(words, code, stdout, stderr)
