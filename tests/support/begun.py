"""nvc-cli without its start, for tests that call it often: a process has imported it, and forks for each call.

cli = Begun("/usr/local", host.namespace)
cli("doctor", "driver").stdout

How nvc-cli itself starts, other tests try.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from . import CLEAN_ENV
from .processes import SHARED

#: Modules that the calls need.
IMPORTED = (
    *("nvc_cli.doctor", "nvc.doctor.catalog", "nvc.discovery.containers.running", "nvc.discovery.full", "tomlkit"),
    *("nvc_cli.cdi", "nvc_cli.config", "nvc_cli.vgpu", "nvc.discovery.find", "nvc.slices.admin.device_policy"),
    *("nvc.slices.make.run", "nvc.slices.show.tables", "nvc.slices.store.status"),
)
#: Run as the launcher runs Python; the words are the installation's prefix and IMPORTED.
SERVER = """
import os
import sys
prefix, *modules = sys.argv[1:]
with open(f"{prefix}/lib/nvc/launch.conf") as file:
    lines = [line.rstrip("\\n").partition(" ") for line in file]
sys.path += [f"{prefix}/lib/nvc/python", *(value for name, _, value in lines if name == "path")]
import importlib, json
from nvc_cli.boot import main
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
        sys.argv[1:] = json.loads(line)
        main("nvc-cli")
    status = os.waitpid(pid, 0)[1]
    texts = [os.pread(file, 1 << 24, 0).decode() for file in files]
    for file in files:
        os.close(file)
    print(json.dumps([os.waitstatus_to_exitcode(status), *texts]), flush=True)
"""


_SHARED: dict[str, Begun] = {}


def shared(prefix: str) -> Begun:
    """The one that this process of tests has for an installation, in its own mount namespace."""
    if prefix not in _SHARED:
        _SHARED[prefix] = Begun(prefix)
    return _SHARED[prefix]


def end_shared() -> None:
    """Where this process of tests ends."""
    while _SHARED:
        _SHARED.popitem()[1].end()


class Begun:
    """The process. `prefix` is the installation's, `enter` the argv that runs a program where calls are made."""

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
            [*enter, interpreter, "-I", "-S", "-B", "-c", SERVER, prefix, *IMPORTED],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=CLEAN_ENV,
        )  # fmt: skip
        SHARED.add(self._process.pid)

    def end(self) -> None:
        """End it."""
        SHARED.discard(self._process.pid)
        self._process.communicate()

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """What nvc-cli does with these words, with a bare environment and without standard input.

        `check`: exit 0 is expected.
        """
        sent, answered = self._process.stdin, self._process.stdout
        assert sent is not None and answered is not None
        sent.write(json.dumps(words) + "\n")
        sent.flush()
        line = answered.readline()
        assert line, "it has ended"
        code, stdout, stderr = json.loads(line)
        assert code == 0 or not check, f"{words}: exit {code}\n{stdout}{stderr}"
        return subprocess.CompletedProcess(words, code, stdout, stderr)
