"""nvcd without its start, for the many tests that are about what it does: a process has imported it, and forks.

Half of a second of a processor is what an interpreter and its modules take otherwise, and pyroute2 in nvcd-watch.
`Place.start` takes this way in real time. How the launcher starts nvcd, test_nvcd.py and test_nvcd_end.py try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .begun import Forking
from .forked import Forked

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
        place, log, variables, constants, sys.argv[1:] = asked
        for name, value in constants.items():
            module, _, name = name.rpartition(".")
            assert hasattr(sys.modules[module], name)
            setattr(sys.modules[module], name, value)
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


class Server(Forking):
    """The process that forks them."""

    server, modules = SERVER, IMPORTED

    def start(
        self, place: int, log: str, variables: Mapping[str, str], constants: Mapping[str, float],
        words: Sequence[str],
    ) -> Forked:  # fmt: skip
        """One in the mount namespace of the process `place`, whose log is a file that is there.

        `constants` of modules have those values in it.
        """
        return Forked(self, self.ask([place, log, dict(variables), dict(constants), list(words)]))
