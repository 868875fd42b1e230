"""The life of nvc-kubelet-plugin: its parts are made and started, and ended in the opposite order."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import nvc
from nvc.base.errors import InitializationError, NvcError, PermissionDenied, unforeseen, visible
from nvc.base.wake import Wake
from nvc.discovery import discover
from nvc.frontends.cdi.generate import installed_hook, slicing_of
from nvc.kernel import Kernel, LinuxKernel
from nvc.kubernetes.api.access import by_kubeconfig, in_cluster
from nvc.kubernetes.api.client import Api, Server
from nvc.kubernetes.api.events import Events
from nvc.kubernetes.api.publish import Publisher
from nvc.kubernetes.claims import give
from nvc.kubernetes.claims.claim import Allocation
from nvc.kubernetes.claims.devices import GPU, Device, devices_of, oversubscribed
from nvc.kubernetes.claims.give import Outlet
from nvc.kubernetes.claims.holdings import held_by, lacking, uuid_of
from nvc.kubernetes.claims.prepare import Host, Preparer, held_of
from nvc.kubernetes.claims.sizes import resources
from nvc.kubernetes.claims.topology import places
from nvc.kubernetes.errors import ApiError, ClaimError
from nvc.kubernetes.health import nvml
from nvc.kubernetes.health.board import Board
from nvc.kubernetes.health.health import Monitor
from nvc.kubernetes.health.metrics import Collector, Counts
from nvc.kubernetes.names import CLAIM_API
from nvc.kubernetes.plugin.deviceplugin import DevicePlugin, Offer
from nvc.kubernetes.plugin.dra import Driver
from nvc.kubernetes.plugin.lead import lead
from nvc.kubernetes.plugin.record import Recorder
from nvc.kubernetes.plugin.settings import DEVICE_PLUGIN, DRA, Settings
from nvc.kubernetes.plugin.web import Web
from nvc.model.facts import HostFacts
from nvc.request.config import Config, driver_options
from nvc.request.environment import bounds_of
from nvc.slices.client.nvcd import why_by_shim
from nvc.slices.make.calibrate import libraries_of
from nvc.slices.make.confine import die_with
from nvc.slices.make.held_files import HeldFiles
from nvc.slices.policy import policies

#: Seconds between two looks at the node's devices, and at claims that nobody will unprepare.
LOOK, COLLECT = 60.0, 600.0
RESOURCES = f"/apis/{CLAIM_API}"


def _line(error: NvcError | OSError) -> str:
    return (error if isinstance(error, NvcError) else unforeseen(error)).line()


def log(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"nvc-kubelet-plugin: {visible(text)}\n")
    sys.stderr.flush()


def with_policy(device: Device) -> Device:
    """The device with the factor of its policy: slices beyond its memory have room where idle ones leave."""
    try:
        own = policies.read(device.uuid)
    except NvcError as error:
        return oversubscribed(device, 100, f"{error.path}: {error.cause}")
    if own.oversubscribe <= 100:
        return device
    doubt = why_by_shim(device.uuid) if own.idle_s else "idle-suspend is off"
    return oversubscribed(device, own.oversubscribe, doubt)


class Plugin:
    """All parts of the process."""

    def __init__(self, settings: Settings, config: Config, environment: dict[str, str]) -> None:
        """Nothing is served yet. Raises NvcError."""
        self.settings = settings
        self.config = config
        self._wake = Wake()
        self._ended = False
        self.served: tuple[str, ...] = ()
        self.kernel: Kernel = LinuxKernel()
        self.options = driver_options(config).replace(load_kmods=False)
        self.board = Board()
        self.counts = Counts()

        def server() -> Server:
            return by_kubeconfig(settings.kubeconfig) if settings.kubeconfig else in_cluster(environment)

        self.api = Api(server, f"nvc-kubelet-plugin/{nvc.__version__}")
        self.outlet = Outlet(settings.cdi_dir, settings.hook_path or installed_hook())
        self.host = Host(
            self.kernel, self.options, discover,
            lambda facts: tuple(map(with_policy, devices_of(facts, places(facts), self.monitor.profiles))),
        )  # fmt: skip
        # Before anything has begun a thread.
        _, channel = nvml.start()
        self.monitor = Monitor(
            channel, self.board, self._gpus, self._wake.call, log, settings.health_quiet, settings.health_interval
        )
        self._held = HeldFiles(self.kernel)
        self._known: tuple[Device, ...] = ()
        self._problem = self._names = ""
        self._monitored = False
        self._web: Web | None = None
        self.publisher = Publisher(self.api, settings.driver_name, settings.node_name, self._published)
        self.preparer = Preparer(
            self.host, self.api, settings.driver_name, settings.state_dir, self.outlet, bounds_of(config),
            self._admit,
        )  # fmt: skip
        self.device_plugin = DevicePlugin(
            settings.device_plugin_dir, self.board, self.counts, log, self.preparer.held,
            lambda size, ids: [give.size_name(uuid_of(id), size.name) for id in ids],
            lambda names: self.recorder.note(resources=names), settings.placement == "packed",
            self.preparer.giving,
        )  # fmt: skip
        self.driver = Driver(
            settings.driver_name, settings.node_name, self.preparer, self.board, self.devices, self.counts, log,
            self._registered,
        )  # fmt: skip
        self.events = Events(
            self.api, settings.driver_name, settings.node_name, "nvc-kubelet-plugin", self.preparer.prepared,
            self.preparer.claim, log,
        )  # fmt: skip
        self.recorder = Recorder(settings, self.options.root, self.outlet.hook_path, log)

    def _gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(device.parent or device.uuid for device in self._known))

    def _admit(self, allocation: Allocation) -> None:
        """Refuse a claim of what pods have by the device plugin. Raises ClaimError, CheckpointError."""
        if DRA not in self.served or DEVICE_PLUGIN not in self.served:
            return
        grants, offer = self.device_plugin.grants, self.device_plugin.offer
        grants.look()
        held = [one for size in offer.sizes for one in held_by(size, grants.used(size.resource))]
        if not held:
            return
        others = self.preparer.held(apart=allocation.uid)
        found = lacking(offer.devices, held_of(allocation), held, others)
        if found is not None:
            name = next(given.device for given in allocation.given if given.uuid == found[0])
            where = f"{allocation.namespace}/{allocation.name}"
            cause = f"pods have {name} by the device plugin: {found[1].text}"
            raise ClaimError("prepare claim", where, cause, "serve each node by one mode: --mode")

    def devices(self) -> tuple[Device, ...]:
        """The node's devices as of the last look."""
        return self._known

    def modes(self) -> tuple[str, ...]:
        """What is to be served. Raises ApiError."""
        if self.settings.mode:
            return self.settings.mode
        try:
            self.api.get(RESOURCES)
        except ApiError as error:
            if error.status == 404:
                return (DEVICE_PLUGIN,)
            if not self.preparer.checkpoint.uids():
                raise
            # Pods that end need their claims unprepared, which takes no API server.
            log(error.line())
        return (DRA,)

    def look(self) -> None:
        """See which devices the node has now, and have them published."""
        try:
            facts, devices = self.host.look()
        except (NvcError, OSError) as error:
            # Not "no devices": pods that have some would be evicted for a driver that is just being replaced.
            self._say(f"look for devices: {_line(error)}")
            self._held.look()
            return
        self._say(self._held.hold(facts))
        found = tuple(
            device.replace(problems=self.board.of(device.parent or device.uuid).problems)
            for device in devices.values()
        )
        before, self._known = self._known, found
        told = {device.name: (device.percent, device.doubt) for device in before}
        for device in found:
            if told.get(device.name, (100, "")) != (device.percent, device.doubt):
                doubt = f", less than its policy says: {device.doubt}" if device.doubt else ""
                log(f"{device.name}: slices may have {device.percent}% of its memory{doubt}")
        self._monitor(facts)  # it tells of the devices that are known
        if DEVICE_PLUGIN in self.served:
            self._offer(facts, found)
        if found != before or not self.publisher.published:
            names = ", ".join(device.name for device in found) or "none"
            if names != self._names:
                self._names = names
                log(f"driver {facts.driver_label}, devices: {names}")
            self.publisher.want(found)
            self.board.touch()

    def _offer(self, facts: HostFacts, devices: tuple[Device, ...]) -> None:
        if self.monitor.running and not self.monitor.answered:
            # What a MIG device is called takes its profile, and a node keeps every name that was ever offered.
            devices = tuple(device for device in devices if device.kind == GPU)
        try:
            found = resources(facts, devices, slicing_of(self.config))
            if found.sizes:
                give.write_node(self.kernel, facts, self.options, self.outlet, found.slicing)
        except (NvcError, OSError) as error:
            self._say(f"offer devices: {_line(error)}")
            return
        offer = Offer(devices, found.sizes)
        if offer != self.device_plugin.offer:
            for problem in found.problems:
                log(f"size {problem}")
            self.recorder.note(offered=tuple(size.resource for size in found.sizes))
            self.device_plugin.want(offer)

    def _monitor(self, facts: HostFacts) -> None:
        """Have NVML watched, once there is one."""
        if not self._monitored:
            try:
                libraries = libraries_of(facts)
            except NvcError as error:
                self._say(f"health is not monitored: {error.line()}")
                return
            self._monitored = True
            self.monitor.start(libraries)

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            log(problem)
        self._problem = problem

    def _registered(self, refusal: str) -> None:
        self.recorder.note(registered=not refusal, refused=refusal)
        if not refusal:
            self.publisher.look()

    def _published(self, error: NvcError | None) -> None:
        if error is not None:
            self.counts.failed("publish")
            log(error.line())

    def start(self) -> None:
        """Serve; `run` returns after SIGTERM or SIGINT. Raises NvcError."""
        self._wake.obey((signal.SIGTERM, signal.SIGINT), self.end)
        settings = self.settings
        if not self.preparer.shares:
            log(
                "no right to mount (CAP_SYS_ADMIN): only one container at a time can use a request of a claim"
            )
        for problem in self.preparer.adopt():
            log(problem.line())
        if settings.metrics_listen:
            collector = Collector(
                settings.node_name, settings.driver_name, self.counts, self.board, self.devices,
                self.preparer.prepared, lambda: self.monitor.round.figures, self.monitor.xids,
                settings.dcgm_metrics,
            )  # fmt: skip
            self._web = Web(settings.metrics_listen, collector)
        self.served = self.modes()
        self.recorder.note(modes=self.served, shares=self.preparer.shares)
        self.look()
        if DRA in self.served:
            at = settings.places
            self.recorder.note(endpoint=at.endpoint, registration=at.registration)
            self.driver.start(at)
            os.write(self.settings.ready, b"ready")
        lead(settings.state_dir, self._lead)

    def _lead(self) -> None:
        """Do what only one plugin of a node does at a time."""
        if self._ended:
            return
        if DEVICE_PLUGIN in self.served:
            self.device_plugin.start()
        if DRA in self.served:
            self.publisher.start()

    def run(self) -> None:
        """Until `end` is called."""
        collect = time.monotonic()  # at once: claims may have gone while no plugin ran
        while True:
            if time.monotonic() >= collect:
                collect = time.monotonic() + COLLECT
                self._logged(self._collect)
            self._wake.wait(LOOK)
            if self._ended:
                return
            self.look()
            if DRA in self.served:
                self._logged(self.events.look)

    def _logged(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (NvcError, OSError) as error:
            log(_line(error))

    def _collect(self) -> None:
        for uid in self.preparer.collect():
            log(f"claim {uid} is gone from the API server: what was made for it is removed")

    def end(self) -> None:
        """Have `run` return."""
        self._ended = True
        self._wake.call()

    def stop(self) -> None:
        """Unregister. What is prepared stays: pods use it, and the next process goes on with it."""
        self.board.close()
        if self._web is not None:
            self._web.stop()
        self.driver.stop()
        self.device_plugin.stop()
        if self.publisher.running:
            self.publisher.stop()
        self.api.close()


def run(settings: Settings, config: Config, environment: dict[str, str]) -> None:
    """Be the worker of the front that has started this process, until SIGTERM or SIGINT.

    Raises NvcError when it cannot begin.
    """
    die_with(settings.front)
    if os.geteuid() != 0:
        raise PermissionDenied("start nvc-kubelet-plugin", cause="only root can")
    if not settings.node_name:
        raise InitializationError("start nvc-kubelet-plugin", "--node-name", "is missing", "name the node")
    plugin = Plugin(settings, config, environment)
    try:
        plugin.start()
        log(f"version {nvc.__version__}, node {settings.node_name}, driver {settings.driver_name}: ready")
        plugin.run()
    finally:
        plugin.stop()
