"""`vgpu run` and nvcd without their starts: a process that has imported both forks, for a test in real time.

Half of a second of a processor is what an interpreter and nvcd's modules take otherwise.
test_vgpu_run.py, test_nvcd.py and test_nvcd_end.py try how the launcher starts them.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any

from . import CLEAN_ENV
from .begun import IMPORTED, Forking, shared_of

MODULES = (
    *(*IMPORTED, "nvc_cli.boot", "nvc_cli.caller_environment", "nvc_cli.daemon", "nvc.daemon.main"),
    *("prometheus_client", "pyroute2.netlink.connector.cn_proc", "pyroute2.netlink.uevent"),
)
#: A child takes the test's files by their paths, such as those of pipes in /proc, before the answer. What the
#: launcher hands on as the caller's environment is in a file. nvc.daemon.main keeps whether systemd has started it.
SERVER = """
os.environ["NOTIFY_SOCKET"] = "/"
for name in modules:
    importlib.import_module(name)
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):
        answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
    else:
        taken, taking = os.pipe()
        answer = os.fork()
        if answer == 0:
            program, paths, directory, place, variables, carried, constants, sys.argv[1:] = asked
            for name, value in constants.items():
                module, _, name = name.rpartition(".")
                assert hasattr(sys.modules[module], name)
                setattr(sys.modules[module], name, value)
            for number, path in enumerate(paths):
                os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY), number)
            os.write(taking, b"x")
            os.closerange(3, 1 << 16)
            os.environ.clear()
            os.environ.update(variables)
            if carried:
                file = os.memfd_create("environment", 0)
                os.write(file, carried.encode("utf-8", "surrogateescape"))
                os.environ["NVC_CALLERS_ENVIRONMENT"] = str(file)
            if place:
                enter(place)
            os.chdir(directory)
            try:
                sys.modules["nvc_cli.daemon" if program == "nvcd" else "nvc_cli.boot"].main(program)
            except SystemExit as end:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(end.code)
        os.close(taking)
        os.read(taken, 1)
        os.close(taken)
    print(answer, flush=True)
"""


class Starter(Forking):
    """The process that forks them."""

    server, modules = SERVER, MODULES


def fork(
    prefix: str, program: str, words: Sequence[str], paths: Sequence[str], place: str = "",
    variables: Mapping[str, str] = MappingProxyType(CLEAN_ENV), carried: str = "",
    constants: Mapping[str, float] = MappingProxyType({}),
) -> Forked:  # fmt: skip
    """Start a program of an installation, `nvc-cli` or `nvcd`, in the mount namespace of the process `place`.

    `paths` are of its standard streams, `constants` of modules have those values in it.
    """
    server = shared_of(Starter, prefix)
    asked = [program, list(paths), os.getcwd(), place, dict(variables), carried, dict(constants), list(words)]
    return Forked(server, server.ask(asked))


class Forked:
    """A child of `server`. Streams that were asked for as pipes are this process's ends."""

    def __init__(self, server: Forking, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._server = server
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        found = self._look(timeout)
        if found is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return found

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write, read all that it says, and wait for its end."""
        if self.stdin is not None:
            try:
                if text is not None:
                    self.stdin.write(text)
                self.stdin.close()
            except BrokenPipeError:
                pass
        said = []
        for stream in (self.stdout, self.stderr):
            said.append(stream.read() if stream is not None and not stream.closed else None)
            if stream is not None:
                stream.close()
        self.wait(timeout)
        return said[0], said[1]

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._fd], [], [], seconds)[0]:
            self.returncode = self._server.ask(self.pid)
            os.close(self._fd)
        return self.returncode
