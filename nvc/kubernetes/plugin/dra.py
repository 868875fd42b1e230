"""The DRA driver for kubelet: a socket to register at, and one that prepares claims and tells of health."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nvc.base.errors import one_line, unforeseen
from nvc.kubernetes.claims import give
from nvc.kubernetes.claims.devices import Device
from nvc.kubernetes.claims.prepare import Preparer
from nvc.kubernetes.health.board import HEALTHY, UNHEALTHY, Board
from nvc.kubernetes.health.metrics import Counts
from nvc.kubernetes.plugin.rpc import Socket, method, stream
from nvc.kubernetes.plugin.sockets import Places
from nvc.kubernetes.protocol import dra_pb2, health_pb2, registration_pb2

TYPE = "DRAPlugin"
#: What is told at registration; kubelet takes the newest that it knows.
SERVICES = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH_SERVICE = "v1alpha1.DRAResourceHealth"
REGISTRATION_SERVICE = "pluginregistration.Registration"
#: Seconds after which kubelet takes a device's health to be unknown, and between two messages.
HEALTH_TIMEOUT, HEALTH_AGAIN = 120, 30.0
_MESSAGE_MAX = 1024
_HEALTH = {HEALTHY: health_pb2.HEALTHY, UNHEALTHY: health_pb2.UNHEALTHY}


@dataclass
class Driver:
    """The services of one driver."""

    name: str
    node: str
    preparer: Preparer
    board: Board
    devices: Callable[[], tuple[Device, ...]]
    counts: Counts
    log: Callable[[str], None]
    registered: Callable[[str], None]  # hears what the kubelet says of the registration: why it is refused, or ""
    _socket: Socket | None = None

    def start(self, at: Places) -> None:
        """Serve what the front passes on from the kubelet's sockets. Raises InitializationError."""
        def info(_: object) -> registration_pb2.PluginInfo:
            return registration_pb2.PluginInfo(
                type=TYPE, name=self.name, endpoint=at.endpoint, supported_versions=SERVICES
            )

        watched = health_pb2.NodeWatchResourcesRequest
        self._socket = Socket(at.inner, {
            SERVICE: (
                method("NodePrepareResources", dra_pb2.NodePrepareResourcesRequest, self.prepare),
                method("NodeUnprepareResources", dra_pb2.NodeUnprepareResourcesRequest, self.unprepare),
            ),
            HEALTH_SERVICE: (stream("NodeWatchResources", watched, self.watch, self.board.touch),),
            REGISTRATION_SERVICE: (
                method("GetInfo", registration_pb2.InfoRequest, info),
                method("NotifyRegistrationStatus", registration_pb2.RegistrationStatus, self.told),
            ),
        })  # fmt: skip

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.stop()

    def told(
        self, status: registration_pb2.RegistrationStatus
    ) -> registration_pb2.RegistrationStatusResponse:
        """What kubelet says of the registration; it registers anew whenever it starts."""
        if status.plugin_registered:
            self.counts.registrations += 1
            self.log(f"kubelet has registered the driver {self.name}")
            self.registered("")
        else:
            self.log(f"kubelet has refused the driver {self.name}: {one_line(status.error)}")
            self.registered(one_line(status.error) or "it does not say why")
        return registration_pb2.RegistrationStatusResponse()

    async def prepare(
        self, request: dra_pb2.NodePrepareResourcesRequest
    ) -> dra_pb2.NodePrepareResourcesResponse:
        """Prepare claims; each has an entry in the reply, with its devices or what is wrong.

        Those that wait for a device do so at the same time: the kubelet's patience is for all of them.
        """
        reply = dra_pb2.NodePrepareResourcesResponse()
        await asyncio.gather(*(self._prepare(claim, reply.claims[claim.uid]) for claim in request.claims))
        return reply

    async def _prepare(self, claim: dra_pb2.Claim, entry: dra_pb2.NodePrepareResourceResponse) -> None:
        began = time.monotonic()
        try:
            found = await self.preparer.prepare(claim.namespace, claim.name, claim.uid)
        except Exception as error:
            entry.error = self._failed("prepare", claim, error)
            return
        for place, one in enumerate(found.given):
            device = entry.devices.add(
                request_names=[one.request], pool_name=one.pool, device_name=one.device,
                cdi_device_ids=[give.device_name(found, place)],
            )  # fmt: skip
            if one.share:
                device.share_id = one.share
        self.counts.prepared(time.monotonic() - began)

    def unprepare(
        self, request: dra_pb2.NodeUnprepareResourcesRequest
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        """Undo preparations; each claim has an entry in the reply."""
        reply = dra_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            entry = reply.claims[claim.uid]
            try:
                self.preparer.unprepare(claim.uid)
            except Exception as error:
                entry.error = self._failed("unprepare", claim, error)
        return reply

    def _failed(self, what: str, claim: dra_pb2.Claim, error: Exception) -> str:
        """The text for kubelet's event on the pod, which the log has too."""
        self.counts.failed(what)
        found = error if hasattr(error, "line") else unforeseen(error)
        text = found.line()
        self.log(f"{what} claim {one_line(claim.namespace)}/{one_line(claim.name)}: {text}")
        return str(text)

    def watch(
        self, _: health_pb2.NodeWatchResourcesRequest, alive: threading.Event
    ) -> Iterator[health_pb2.NodeWatchResourcesResponse]:
        """The health of all devices: now, at each change, and often enough that kubelet believes it."""
        for _nothing in self.board.changes(HEALTH_AGAIN, alive):
            now = int(time.time())
            reply = health_pb2.NodeWatchResourcesResponse()
            for device in self.devices():
                condition = self.board.of(device.parent or device.uuid)
                reply.devices.add(
                    device=health_pb2.DeviceIdentifier(pool_name=self.node, device_name=device.name),
                    health=_HEALTH.get(condition.health, health_pb2.UNKNOWN),
                    last_updated_time=now,
                    health_check_timeout_seconds=HEALTH_TIMEOUT,
                    message=condition.text[:_MESSAGE_MAX],
                )
            yield reply
