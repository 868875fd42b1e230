"""nvcd without its start, for the many tests that are about what it does: a process has imported it, and forks.

Half of a second of a processor is what an interpreter and its modules take otherwise, and pyroute2 in nvcd-watch.
`Place.start` takes this way in real time. How the launcher starts nvcd, test_nvcd.py and test_nvcd_end.py try.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence

from .begun import Forking

IMPORTED = (
    *("nvc_cli.daemon", "nvc.daemon.main", "prometheus_client"),
    *("pyroute2.netlink.connector.cn_proc", "pyroute2.netlink.uevent"),
)
#: nvc.daemon.main keeps whether systemd has started it, as `Daemon` of nvcd.py does.
SERVER = """
os.environ["NOTIFY_SOCKET"] = "/"
for name in modules:
    importlib.import_module(name)
from nvc_cli.daemon import main
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):
        answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
    else:
        answer = os.fork()
    if answer == 0 and not isinstance(asked, int):
        place, log, variables, sys.argv[1:] = asked
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
        os.dup2(2, 1)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.closerange(3, 1 << 16)
        os.environ.clear()
        os.environ.update(variables)
        enter(place)
        try:
            main("nvcd")
        except SystemExit as end:
            sys.stderr.flush()
            os._exit(end.code)
    print(answer, flush=True)
"""


class Nvcd:
    """One that runs; it has what tests use of Popen."""

    def __init__(self, server: Server, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended."""
        found = self._look(timeout)
        if found is None:
            raise subprocess.TimeoutExpired("nvcd", timeout or 0)
        return found

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._fd], [], [], seconds)[0]:
            self.returncode = self._server.ask(self.pid)
            os.close(self._fd)
        return self.returncode


class Server(Forking):
    """The process that forks them."""

    server, modules = SERVER, IMPORTED

    def start(self, place: int, log: str, variables: Mapping[str, str], words: Sequence[str]) -> Nvcd:
        """One in the mount namespace of the process `place`, whose log is a file that is there."""
        return Nvcd(self, self.ask([place, log, dict(variables), list(words)]))
