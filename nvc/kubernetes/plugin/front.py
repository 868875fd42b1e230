"""The process that the kubelet talks to. It passes calls on to the worker (relay.py), which does everything else.

The kubelet repeats a failed preparation only after 60 to 90 seconds, and restarts a container that has ended after
longer and longer pauses. So a worker that is killed or crashes is started again at once, and calls that it has not
answered are repeated: all of them may be. This process reads no message and has nothing to go wrong with.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

from nvc.base.errors import InitializationError, NvcError
from nvc.base.files import closing
from nvc.base.wake import Wake
from nvc.kubernetes.plugin.relay import Relay
from nvc.kubernetes.plugin.rpc import GRACE
from nvc.kubernetes.plugin.sockets import Places

#: The last word of a worker's command line: its parent, and the descriptor to write to when it serves claims.
WORKER = "--worker"
#: Seconds between two starts of a worker.
AGAIN = 1.0


class Front:
    """The kubelet's sockets, and the worker behind them."""

    def __init__(self, at: Places, state: str) -> None:
        """`state` is the plugin's directory."""
        self.at = at
        self.state = state
        self._wake = Wake()
        self._ended = False
        self._opening = threading.Lock()  # for the relay, and whether there shall be one
        self._relay: Relay | None = None
        self._closed = False
        self._problem: NvcError | None = None  # why there are no sockets
        self._ready, self._told = os.pipe()
        os.set_inheritable(self._told, True)
        self._served = threading.Thread(target=self._serve, name="serve", daemon=True)

    def run(self) -> int:
        """Until a signal, or until the worker ends by itself; the exit code.

        Raises InitializationError where the kubelet's sockets cannot be opened.
        """
        self._wake.obey((signal.SIGTERM, signal.SIGINT), self._end)
        self._served.start()
        while not self._ended:
            began = time.monotonic()
            code = self._work()
            if self._problem is not None:
                raise self._problem
            if self._ended:
                return 0 if code in (0, -signal.SIGTERM) else abs(code)
            if code >= 0:
                return code  # it has said why
            sys.stderr.write(f"nvc-kubelet-plugin: the worker was ended by signal {-code} and is started again\n")
            self._wake.wait(AGAIN - (time.monotonic() - began))
        return 0

    def _work(self) -> int:
        """Start a worker; its exit code, or its signal below 0."""
        command = [sys.executable, *sys.orig_argv[1:], f"{WORKER}={os.getpid()},{self._told}"]
        with subprocess.Popen(command, pass_fds=(self._told,)) as worker:
            with closing(os.pidfd_open(worker.pid)) as process:
                while worker.poll() is None:
                    if (self._ended or self._problem is not None) and not self._closed:
                        self._close()
                        worker.terminate()
                    else:
                        self._wake.wait(fd=process)
            return worker.wait()

    def _end(self) -> None:
        self._ended = True

    def _close(self) -> None:
        """Take no new calls, and wait for those that have begun: the worker answers them."""
        with self._opening:
            self._closed = True
        if self._relay is not None:
            self._relay.stop(GRACE)

    def _serve(self) -> None:
        """Open the kubelet's sockets once a worker serves claims: the kubelet calls at once."""
        os.read(self._ready, 1)
        try:
            self._open()
        except NvcError as error:
            self._problem = error
        except OSError as error:
            self._problem = InitializationError.of("open socket", str(error.filename or self.state), error)
        self._wake.call()

    def _open(self) -> None:
        """Raises InitializationError, OSError."""
        with open(f"{self.state}/lock", "a", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for path in self.at.dead():
                os.unlink(path)  # of a plugin that was killed; the kubelet would try to reach it for ever
            with self._opening:
                if not self._closed:
                    self._relay = Relay(self.at.inner, (self.at.endpoint, self.at.registration))
