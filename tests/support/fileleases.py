"""A process that holds a lease on a file (fcntl(2), F_SETLEASE), as root of a container may without CAP_LEASE."""

from __future__ import annotations

import subprocess
import sys

from . import CLEAN_ENV

#: Keeps the lease until it ends, or gives it back when the kernel asks for that (`yields`).
HOLDER = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN if sys.argv[2] == "keeps" else
              lambda *_: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK))
for path in sys.argv[1].split(":"):
    fd = os.open(path, os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, getattr(fcntl, sys.argv[3]))
print("leased", flush=True)
while True:
    signal.pause()
"""
#: Rights that no container has by default, and more.
LEAST = "cap_lease,cap_sys_admin,cap_sys_ptrace,cap_dac_override,cap_dac_read_search"


class Lease:
    """The process, with its lease on a path, or on several with `:` between them.

    `refused` is what the kernel says where it has none.
    """

    def __init__(self, path: str, kind: str = "keeps", lock: str = "F_WRLCK") -> None:
        words = ["capsh", f"--drop={LEAST}", f"--shell={sys.executable}", "--", "-c", HOLDER]
        self.process = subprocess.Popen(
            [*words, path, kind, lock], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=CLEAN_ENV, text=True
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.refused = "" if self.process.stdout.readline() == "leased\n" else self.process.stderr.read()

    @property
    def pid(self) -> int:
        """Of the holder."""
        return self.process.pid

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()
