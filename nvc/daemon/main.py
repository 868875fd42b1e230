"""Runs nvcd: opens sockets, drops privileges, and runs the loop until a signal ends it."""

from __future__ import annotations

import gc
import os
import resource
import signal
import time
from contextlib import suppress

import nvc
from nvc.base.errors import PermissionDenied, counted, visible
from nvc.daemon.daemon import Daemon
from nvc.daemon.io import watch
from nvc.daemon.io.loop import SECOND
from nvc.daemon.io.sockets import Notifier, activated, wait_for_end
from nvc.daemon.places import CONTROL_SOCKET, Places, own_directory
from nvc.daemon.suspend import teller
from nvc.kernel import LinuxKernel, privileges
from nvc.request.config import Config

FILES = 16384  # descriptors, as in packaging/systemd/nvcd.service
OBEYED = (signal.SIGTERM, signal.SIGINT, signal.SIGIO)
WARNING, INFORMATION = 4, 6  # levels of syslog(3)
#: Whether systemd runs it: then the journal reads levels (sd-daemon(3)). Known now: the variables are cleared.
BY_SYSTEMD = "NOTIFY_SOCKET" in os.environ


def log(text: str, level: int = WARNING) -> None:
    """One line on standard error, for systemd's journal with its level. It may be a terminal that has gone.

    The text may quote names that tenants give, as of cgroups: here, and nowhere else, they are made harmless.
    """
    line = f"{f'<{level}>' if BY_SYSTEMD else ''}nvcd: {visible(text)}\n"
    with suppress(OSError):
        os.write(2, line.encode())


def run(config: Config, wait: bool = False) -> None:
    """Be the daemon; with `wait` once the one that runs has ended. Raises NvcError when it cannot begin."""
    if os.geteuid() != 0:
        raise PermissionDenied("start nvcd", cause="only root can")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of the shell that started it; the helpers inherit that
    raise_file_limit()
    kernel = LinuxKernel()
    notifier = Notifier(os.environ)
    sockets = activated(os.environ)
    # Nothing else is for this process, and nothing at all for its helpers, which run the driver's code.
    os.environ.clear()
    if wait:
        wait_for_end(
            f"{own_directory()}/{CONTROL_SOCKET}",
            lambda pid: log(f"waits until the nvcd of process {pid} has ended", INFORMATION),
        )
    places = Places(sockets, config.nvcd_metrics, config.nvcd_web)
    watching, telling = watch.start(kernel), teller.start(kernel)
    now = time.monotonic_ns()
    daemon = Daemon(config, kernel, now, log)
    daemon.timing.open(now)
    privileges.reduce("nvcd")
    places.serve(daemon)
    daemon.watch(*watching)
    daemon.suspender.hooks.begin(telling[1])
    try:
        serve(daemon, notifier, places)
    finally:
        notifier.say("STOPPING=1")
        daemon.close()
        # The interpreter gives signals with a handler back to their defaults before it ends, and closes what the
        # kernel was asked to watch only later: a slice that goes meanwhile would kill it by SIGIO.
        for number in OBEYED:
            signal.signal(number, signal.SIG_IGN)
    if places.problem is not None:
        raise places.problem


def raise_file_limit() -> None:
    """Have room for FILES descriptors: with the limit of a shell, a crowd of clients would use them up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES:
        most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def serve(daemon: Daemon, notifier: Notifier, places: Places) -> None:
    """Take in what is there, tell systemd, and run the loop until a signal ends it, or a place that stays gone."""
    loop = daemon.loop
    obey_signals(daemon)
    places.watch(daemon)
    now = time.monotonic_ns()
    daemon.slices.refresh(now)
    daemon.mps.adopt(now)
    daemon.suspender.open(now)
    daemon.search(now)
    for text, level in begun(daemon, places.control):
        log(text, level)
    loop.every(SECOND, lambda now: places.look(daemon, now, log))
    loop.every(SECOND, daemon.second)
    loop.every(SECOND // 2, daemon.half)
    if notifier.watchdog:
        loop.every(notifier.watchdog, lambda now: notifier.say("WATCHDOG=1"))
    gc.collect()
    gc.freeze()
    notifier.say("READY=1")
    loop.run()


def begun(daemon: Daemon, control_socket: str) -> tuple[tuple[str, int], ...]:
    """What the log says at the start, each line with its level: what runs here, with which driver and defaults."""
    config = daemon.config
    driver = f"driver {daemon.driver} in {config.root}" if daemon.driver else f"no driver in {config.root} yet"
    count = counted(len(daemon.slices.by_key), "slice")
    runs = f"version {nvc.__version__}, {driver}, {count}, socket {control_socket}"
    defaults = (
        f"configuration {config.path or 'defaults'}: policy {config.vgpu_policy or 'automatic'}, "
        f"on-bypass {config.nvcd_on_bypass}, on-excess {config.nvcd_on_excess}, "
        f"metrics {config.nvcd_metrics or 'off'}"
    )
    told = [(runs, INFORMATION), (defaults, INFORMATION)]
    if daemon.page:
        told.append((f"live page {daemon.page['address']}, its token in {daemon.page['token']}", INFORMATION))
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
