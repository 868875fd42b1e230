"""Runs nvcd: opens sockets, drops privileges, and runs the loop until a signal ends it."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import signal
import socket
import sys
import time

import nvc
from nvc import privileges
from nvc.daemon import control
from nvc.daemon.daemon import Daemon
from nvc.daemon.io import watch
from nvc.daemon.io.loop import SECOND
from nvc.daemon.io.services import Service
from nvc.daemon.io.sockets import CONTROL, TENANT, Notifier, activated, listen, listen_at, wait_for_end
from nvc.errors import InitializationError, NvcError, PermissionDenied
from nvc.kernel import LinuxKernel
from nvc.rundir import runtime_directory
from nvc.slices.policy import policies
from nvc.slices.store import registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.config import Config

TENANT_SOCKET = "socket"
CONTROL_SOCKET = "nvcd.sock"
FILES = 16384  # descriptors, as in packaging/systemd/nvcd.service
OBEYED = (signal.SIGTERM, signal.SIGINT, signal.SIGIO)
WARNING, INFORMATION = 4, 6  # levels of syslog(3)


def log(text: str, level: int = WARNING) -> None:
    """One line on standard error, with the level that systemd's journal reads (sd-daemon(3))."""
    sys.stderr.write(f"<{level}>nvcd: {text}\n")
    sys.stderr.flush()


def run(config: Config, wait: bool = False) -> None:
    """Be the daemon; with `wait` once the one that runs has ended. Raises NvcError when it cannot begin."""
    if os.geteuid() != 0:
        raise PermissionDenied("start nvcd", cause="only root can")
    raise_file_limit()
    kernel = LinuxKernel()
    notifier = Notifier(os.environ)
    sockets = activated(os.environ)
    # Nothing else is for this process, and nothing at all for its helpers, which run the driver's code.
    os.environ.clear()
    place = runtime_directory("nvcd")
    if not place:
        raise InitializationError("start nvcd", "/run/nvc/nvcd", "cannot be made")
    if wait:
        wait_for_end(
            f"{place}/{CONTROL_SOCKET}",
            lambda pid: log(f"waits until the nvcd of process {pid} has ended", INFORMATION),
        )
    tenants = registry.daemon_directory()
    if TENANT not in sockets:
        sockets[TENANT] = listen(f"{tenants}/{TENANT_SOCKET}", socket.SOCK_SEQPACKET, 0o666)
    if CONTROL not in sockets:
        sockets[CONTROL] = listen(f"{place}/{CONTROL_SOCKET}", socket.SOCK_STREAM, 0o600)
    metrics = listen_at(config.nvcd_metrics) if config.nvcd_metrics else None
    watching = watch.start(kernel)
    privileges.reduce("nvcd")
    daemon = Daemon(config, kernel, time.monotonic_ns(), log)
    daemon.server.open(sockets[TENANT])
    daemon.watch(*watching)
    Service(daemon.loop, sockets[CONTROL], b"\n", lambda data, now: control.answer(daemon, data, now), True)
    if metrics is not None:
        from nvc.daemon.metrics import Exporter

        exporter = Exporter(daemon)
        Service(daemon.loop, metrics, b"\r\n\r\n", exporter.answer, False)
    try:
        serve(daemon, notifier, (f"{tenants}/{TENANT_SOCKET}", f"{place}/{CONTROL_SOCKET}"))
    finally:
        notifier.say("STOPPING=1")
        daemon.close()
        # The interpreter gives signals with a handler back to their defaults before it ends, and closes what the
        # kernel was asked to watch only later: a slice that goes meanwhile would kill it by SIGIO.
        for number in OBEYED:
            signal.signal(number, signal.SIG_IGN)


def raise_file_limit() -> None:
    """Have room for FILES descriptors: with the limit of a shell, a crowd of clients would use them up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES:
        most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def serve(daemon: Daemon, notifier: Notifier, sockets: tuple[str, str]) -> None:
    """Take in what is there, tell systemd, and run the loop until a signal ends it."""
    loop = daemon.loop
    obey_signals(daemon)
    now = time.monotonic_ns()
    daemon.slices.refresh(now)
    daemon.mps.adopt(now)
    daemon.search(now)
    for text, level in begun(daemon, sockets):
        log(text, level)
    loop.every(SECOND, daemon.second)
    loop.every(SECOND // 2, daemon.half)
    if notifier.watchdog:
        loop.every(notifier.watchdog, lambda now: notifier.say("WATCHDOG=1"))
    gc.collect()
    gc.freeze()
    notifier.say("READY=1")
    loop.run()


def begun(daemon: Daemon, sockets: tuple[str, str]) -> tuple[tuple[str, int], ...]:
    """What the log says at the start, each line with its level: what runs here, with which driver and defaults."""
    config = daemon.config
    driver = f"driver {daemon.driver} in {config.root}" if daemon.driver else f"no driver in {config.root} yet"
    count = len(daemon.slices.by_key)
    runs = f"version {nvc.__version__}, {driver}, {count} slices, sockets {' and '.join(sockets)}"
    defaults = (
        f"configuration {config.path or 'defaults'}: policy {config.vgpu_policy or 'automatic'}, "
        f"on-bypass {config.nvcd_on_bypass}, on-excess {config.nvcd_on_excess}, "
        f"on-overuse {config.nvcd_on_overuse}, metrics {config.nvcd_metrics or 'off'}"
    )
    told = ((runs, INFORMATION), (defaults, INFORMATION))
    return (*told, *((text, WARNING) for text in config.warnings))


def obey_signals(daemon: Daemon) -> None:
    """SIGTERM and SIGINT end the loop between two events; by SIGIO the kernel tells of slices and policies."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    for number in OBEYED:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def obey(now: int) -> None:
        numbers = os.read(read, 4096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            daemon.loop.stop()
        else:
            daemon.happened("slices", now)

    daemon.loop.add(read, obey)
    changes = fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_ATTRIB | fcntl.DN_MULTISHOT
    try:
        for path in (daemon.slices.base, policies.directory()):
            fcntl.fcntl(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.F_NOTIFY, changes)
        daemon.notified = True
    except (OSError, NvcError) as error:  # OSError: a kernel without CONFIG_DNOTIFY
        daemon.log(f"changes of slices and policies are seen once a second only: {error}")
