"""nvc-nri: its parts are made, and the plugin serves until the runtime or a signal ends it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import nvc
from nvc.base.errors import InitializationError, InputError, NvcError, PermissionDenied, one_line
from nvc.base.value import Value
from nvc.discovery import discover
from nvc.frontends.cdi.generate import installed_hook
from nvc.frontends.nri.adjust import adjustment, given
from nvc.frontends.nri.annotations import asked, named, request_of
from nvc.frontends.nri.plugin import Plugin
from nvc.frontends.nri.wire import NriError, Wire
from nvc.kernel import LinuxKernel
from nvc.request.config import Config, driver_options

#: Seconds that the driver has to answer: runtimes wait for 2 s, and then start the container without a GPU.
ANSWER = 1.5
HINT = "start the runtime, with NRI enabled, or name its socket with --socket"


class Settings(Value):
    """What the command line says."""

    socket: str = "/var/run/nri/nri.sock"
    index: str = "10"  # two digits
    hook_path: str = ""  # nvc-cdi-hook as the runtime finds it; "": of this installation
    namespaces: tuple[str, ...] = ()  # whose pods may ask; (): all


def log(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"nvc-nri: {one_line(text)}\n")
    sys.stderr.flush()


class Giver:
    """Gives containers what the annotations of their pods ask for."""

    def __init__(
        self, settings: Settings, configured: Callable[[], Config], let_go: Callable[[], None]
    ) -> None:
        """`configured` reads the settings of now. `let_go` is called in a child, to let go of the runtime."""
        self._namespaces = settings.namespaces
        self._hook_path = settings.hook_path or installed_hook()
        self._configured = configured
        self._let_go = let_go
        self._kernel = LinuxKernel()
        self._child = 0

    def look(self) -> None:
        """Have the driver looked at, so that the first container does not wait for it."""
        try:
            facts = discover(self._kernel, driver_options(self._configured()).replace(load_kmods=False))
        except (NvcError, OSError) as error:
            # Not the end: without the plugin, pods that ask for GPUs would start without them.
            log(f"pods that ask for GPUs are refused: {error}")
            return
        log(f"driver {facts.driver_label}, {len(facts.gpus)} GPUs")

    def _look_again(self) -> None:
        """Look at the driver in a child, which has more time than the runtime gives for an answer.

        The inventory has what it finds; until then, containers that ask are refused.
        """
        if self._child and os.waitpid(self._child, os.WNOHANG) == (0, 0):
            return
        self._child = os.fork()
        if not self._child:
            try:
                self._let_go()
                self.look()
            finally:
                os._exit(0)

    def adjust(self, pod: Any, container: Any) -> Any:
        """The adjustment of one container, None where it asks for nothing. Raises NvcError."""
        wanted = asked(pod.annotations, container.name)
        if wanted is None:
            return None
        name = f"{pod.namespace}/{pod.name}/{container.name}"
        if self._namespaces and pod.namespace not in self._namespaces:
            cause = "pods of this namespace may not ask for GPUs by annotations"
            raise InputError("namespace", pod.namespace, cause, "see --namespaces of nvc-nri(8)")
        config = self._configured()
        options = driver_options(config).replace(load_kmods=False, timeout=min(config.timeout, ANSWER))
        try:
            request = request_of(wanted, container.env, config)
            found = given(self._kernel, options, config, request, self._hook_path)
        except InputError as error:
            raise named(error) from None
        except InitializationError:  # the driver is not there, or takes its time
            self._look_again()
            raise
        own = any(namespace.type == "user" for namespace in container.linux.namespaces)
        made = adjustment(found.edits, own)
        log(f"{name}: {', '.join(found.devices) or 'the driver, no GPU'}")
        return made


def run(settings: Settings, configured: Callable[[], Config]) -> None:
    """Be the plugin until SIGTERM, SIGINT or the runtime's shutdown; `configured` reads the settings of now.

    Raises NvcError.
    """
    if os.geteuid() != 0:
        raise PermissionDenied("start nvc-nri", cause="only root can")
    signal.signal(signal.SIGTERM, _end)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        giver = Giver(settings, configured, connected.close)
        giver.look()
        try:
            connected.connect(settings.socket)
        except OSError as error:
            raise NriError.of("open socket", settings.socket, error, HINT) from None
        log(f"version {nvc.__version__}, {settings.socket}")
        Plugin(Wire(connected, settings.socket), settings.socket, giver.adjust, log).serve(settings.index)
    log("ended by the runtime")


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)
