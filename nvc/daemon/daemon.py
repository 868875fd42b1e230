"""Connects the parts of nvcd: scheduling, audit, sockets, MPS servers."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable
from functools import partial

from nvc.base.errors import NvcError, one_line
from nvc.daemon.audit.accountant import Accountant
from nvc.daemon.audit.nvml_client import DeviceSeen, NvmlClient
from nvc.daemon.audit.verify import BYPASS, EXCESS, FAULT, Verifier
from nvc.daemon.io.loop import SECOND, Loop
from nvc.daemon.io.watch import Watcher
from nvc.daemon.mps.records import MpsServer
from nvc.daemon.mps.servers import Servers
from nvc.daemon.mps.shared import SharedServers
from nvc.daemon.schedule.pacer import Pacer
from nvc.daemon.schedule.slice_index import SliceIndex
from nvc.daemon.suspend.observer import Observer
from nvc.daemon.suspend.observer import start as start_observer
from nvc.daemon.suspend.suspender import Suspender
from nvc.daemon.suspend.use import Use
from nvc.daemon.time.timing import Timing
from nvc.kernel import Kernel
from nvc.kernel.probe import reap
from nvc.model.slices.sizes import parse_size
from nvc.request.config import Config
from nvc.slices.client.mps import CONTROL
from nvc.slices.make.held_files import HeldFiles

CENSUS = 5 * SECOND  # between two looks at which slices still have processes
WHOLE = 7 * SECOND // 4  # for which an answer of NVML stands for the next ones, while memory stays the same
SEARCH = 60 * SECOND  # between two searches for a driver that was not there
SOON = SECOND // 20  # after something was told by the kernel: it may be told more of the kind


class Daemon:
    """nvcd, without its sockets for operators."""

    def __init__(self, config: Config, kernel: Kernel, now: int, log: Callable[[str], None]) -> None:
        self.config = config
        self.kernel = kernel
        self.log = log
        self.started = now
        self.loop = Loop()
        self.slices = SliceIndex(kernel, log)
        self.accountant = Accountant(self.slices, log)
        self.timing = Timing(
            self.loop, kernel, self.slices, config, log,
            lambda: {one.pid: one.uuid for one in self.mps.servers.values() if one.pid},
        )  # fmt: skip
        self.pacer = Pacer(self.loop, self.slices, self.accountant.ledgers.budgets)
        actions = {BYPASS: config.nvcd_on_bypass, EXCESS: config.nvcd_on_excess}
        self.verifier = Verifier(self.accountant, actions, log)
        self.nvml = NvmlClient(self.loop, self._told, self._look_at_once, log, bool(config.nvcd_metrics))
        self.mps = Servers(self.loop, kernel, log, self.slices.whose)
        self.held = HeldFiles(kernel)
        self.shared = SharedServers(self.mps, self.slices, partial(self.verifier.note, FAULT))
        self.suspender = Suspender(
            self.loop, kernel, self.slices, self.accountant, self.look, lambda: self.nvml.libraries, log,
            parse_size("swap-size", config.nvcd_swap_size).bytes if config.nvcd_swap_size else 0,
        )  # fmt: skip
        observer = Observer(self.loop, lambda: start_observer(kernel))
        self.use = Use(self.suspender, self.slices, self.accountant, self.timing, observer, log)
        self.watcher: Watcher | None = None
        self.notified = False  # the kernel tells of changes of slices and policies
        self._census = now
        self._looked = 0  # when NVML last told everything
        self._searched = 0
        self._soon = False
        self._problem = self._unheld = ""
        self.closing: list[Callable[[], None]] = []  # what else is to be ended with it
        self.page: dict[str, str] = {}  # where the live page is, and the file of its token
        self.driver = ""  # its version, "" while it was not found

    def watch(self, pid: int, channel: socket.socket) -> None:
        """Take news from the helper process that watches the kernel."""
        self.watcher = Watcher(self.loop, pid, channel, self.happened, self.log)

    def half(self, now: int) -> None:
        """Ask NVML. Runs twice a second, so that NVML's figures take effect within a second.

        Where nothing is to be done, a glance at the memory in use is enough for a while.
        """
        self._guarded(lambda: self.shared.half(now))
        self.pacer.begin(now)
        if any(known.alive for known in self.slices.by_key.values()) or not self.accountant.devices:
            self._guarded(lambda: self.nvml.glance(now) if self._is_settled(now) else self.look(now))

    def _is_settled(self, now: int) -> bool:
        """Whether the last answer of NVML is new enough, and left nothing that the next one decides."""
        is_new = now - self._looked < WHOLE
        busy = self.suspender.records or self.use.seconds()
        return is_new and not busy and self.verifier.is_settled and self.accountant.is_settled

    def second(self, now: int) -> None:
        """Do what is due once a second: registry, MPS servers, processes to watch."""
        census = now - self._census >= CENSUS
        self.slices.seldom.second(now)
        if census:
            self._census = now
            self.accountant.ledgers.open_again()
            self._say_of_files(self.held.look())
        if census or self.polls or self.slices.broken:  # the kernel does not tell when a file's lease ends
            self._guarded(lambda: self.slices.refresh(now, census))
        self._guarded(lambda: self.timing.second(now))  # it plans anew
        reap(0)
        self.mps.look({key for key, known in self.slices.by_key.items() if known.alive}, now)
        modes = {device.uuid.lower(): device.mode for device in self.accountant.devices}
        self._guarded(lambda: self.shared.second(modes, now))
        self._guarded(lambda: self.suspender.second(now))
        if self.watcher is not None:
            pids = {user.pid for user in self.accountant.users}
            pids |= {known.entry.pid for known in self.slices.by_key.values() if known.alive}
            self.watcher.watch(frozenset(pids))

    @property
    def polls(self) -> bool:
        """Whether the kernel does not tell of everything that changes."""
        return not self.notified or self.watcher is None or bool(self.watcher.problems)

    def refresh(self, now: int) -> None:
        """Read what has changed of slices and policies."""
        self._guarded(lambda: self._refresh(now, False))

    def _refresh(self, now: int, census: bool = True) -> None:
        self.slices.refresh(now, census)
        self.timing.refresh(now)

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do some work, and log a failure: the rest goes on, and the work is tried again later."""
        try:
            work()
        except (OSError, NvcError) as error:
            self._say(str(error))
        except Exception as error:  # of what tenants write, something was not foreseen; the others need nvcd
            last = traceback.extract_tb(error.__traceback__)[-1]
            self._say(f"not foreseen: {type(error).__name__}: {one_line(error)}, {last.filename}:{last.lineno}")

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self.log(problem)

    def _say_of_files(self, problem: str) -> None:
        if problem != self._unheld:
            self._unheld = problem
            if problem:
                self.log(problem)

    def look(self, now: int) -> bool:
        """Ask NVML unless it is being asked. Returns whether it was asked."""
        if self.nvml.libraries is None and not self.search(now):
            return False
        if not self.nvml.ask(now):
            return False
        self.suspender.note()
        self._guarded(lambda: self.use.before(now))
        self.accountant.before()
        return True

    def search(self, now: int) -> bool:
        """Find the driver's NVML and programs; whether they were found."""
        if self._searched and now - self._searched < SEARCH:
            return False
        self._searched = now
        from nvc.discovery import discover
        from nvc.request.config import driver_options
        from nvc.slices.make.calibrate import libraries_of

        try:
            used = self.config.replace(load_kmods=False, disable_imex_channel_creation=True)
            options = driver_options(used)
            facts = discover(self.kernel, options)
            self.nvml.libraries = libraries_of(facts)
            self.driver = facts.driver_label
            self._say_of_files(self.held.hold(facts))
            paths = [one.path for one in facts.binaries if one.path.endswith(f"/{CONTROL}")]
            if facts.simulated:
                paths = [facts.driver_root + path for path in paths]
            self.mps.binary = paths[0] if paths else ""
            self.mps.root = self.nvml.libraries.root
        except NvcError as error:
            self._say(f"{error}; what slices take is not verified")
            return False
        return True

    def start_mps(self, key: str, uuid: str, percent: int, memory: int, now: int) -> MpsServer:
        """Start an MPS control daemon for a slice. Raises DeviceError."""
        return self.mps.start(key, uuid, percent, memory, self._mode_of(uuid, now), now)

    def share_mps(self, uuid: str, now: int) -> MpsServer:
        """Start the MPS control daemon that slices of a device share. Raises DeviceError."""
        return self.shared.start(uuid, self._mode_of(uuid, now), now)

    def _mode_of(self, uuid: str, now: int) -> int:
        if self.nvml.libraries is None:
            self.search(now)
        return next((one.mode for one in self.accountant.devices if one.uuid.lower() == uuid.lower()), 0)

    def _look_at_once(self, now: int) -> None:
        self._guarded(lambda: self.look(now))

    def _told(self, devices: tuple[DeviceSeen, ...], now: int) -> None:
        self._looked = now
        self._guarded(lambda: self.accountant.told(devices, now))
        self._guarded(lambda: self.verifier.look(self.mps.servers, self.suspender.records, now))
        self._guarded(lambda: self.suspender.told(now))
        self._guarded(lambda: self.use.look(now))
        if self.accountant.changed:
            self.accountant.changed = False
            self.slices.apply()
            self._guarded(lambda: self.timing.refresh(now))

    def happened(self, word: str, now: int) -> None:
        """Handle news from the kernel: read slices again and ask NVML, once for many news."""
        if word == "device":
            self.nvml.libraries = None  # the driver may be another one
            self.nvml.close()
            self._searched = 0
        if not self._soon:
            self._soon = True
            self.loop.once(now + SOON, self._look_soon)

    def _look_soon(self, now: int) -> None:
        self._soon = False
        self._guarded(lambda: self._refresh(now))
        self._guarded(lambda: self.look(now))

    def close(self) -> None:
        """End the helper processes, and clear denials."""
        self.timing.close()
        self.suspender.close()
        self._guarded(self.verifier.release)
        self.nvml.close()
        self.held.close()
        for close in self.closing:
            close()
