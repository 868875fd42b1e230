"""The device plugin: a socket for each resource, registered with kubelet again whenever that starts."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from nvc.base.errors import NvcError
from nvc.base.value import Value
from nvc.kubernetes.claims.devices import GPU, Device
from nvc.kubernetes.claims.holdings import (
    Free,
    Held,
    Size,
    free_of,
    held_by,
    ids_of,
    preferred,
    usable,
    uuid_of,
)
from nvc.kubernetes.errors import ClaimError
from nvc.kubernetes.health.board import UNHEALTHY, Board
from nvc.kubernetes.health.metrics import Counts
from nvc.kubernetes.plugin.podresources import listed, used_ids
from nvc.kubernetes.plugin.rpc import Refused, Socket, call, method, stream
from nvc.kubernetes.protocol import deviceplugin_pb2 as pb

VERSION = "v1beta1"
KUBELET = "kubelet.sock"
#: Seconds between two looks: at sockets, and at who has what.
SOCKETS_AGAIN, USE_AGAIN = 1.0, 10.0
#: Seconds after which what was granted and never seen in use is free again.
GRANTED = 120.0
STEP = "allocate"


class Offer(Value):
    """What is offered at one moment."""

    devices: tuple[Device, ...]
    sizes: tuple[Size, ...]


class Grants:
    """Who has what: as kubelet says, what was granted a moment ago, and what claims have."""

    def __init__(self, path: str, claims: Callable[[], list[Held]]) -> None:
        """`path` is kubelet's socket of pod resources."""
        self.path = path
        self.claims = claims
        self._lock = threading.Lock()
        self._granted: dict[tuple[str, str], float] = {}  # resource and id: when
        self._used: dict[str, set[str]] | None = None

    def look(self) -> bool:
        """Ask kubelet; whether the answer is another one than before. Raises ClaimError."""
        used = used_ids(listed(self.path))
        now = time.monotonic()
        with self._lock:
            self._granted = {
                one: at for one, at in self._granted.items()
                if now - at < GRANTED and one[1] not in used.get(one[0], set())
            }  # fmt: skip
            changed, self._used = used != self._used, used
        return changed

    @property
    def known(self) -> bool:
        return self._used is not None

    def used(self, resource: str) -> set[str]:
        with self._lock:
            granted = {id for name, id in self._granted if name == resource}
            return (self._used or {}).get(resource, set()) | granted

    def left(self, offer: Offer) -> dict[str, Free]:
        """What is left of each device."""
        held = [one for size in offer.sizes for one in held_by(size, self.used(size.resource))]
        return free_of(offer.devices, [*held, *self.claims()])

    def grant(self, resource: str, ids: list[str]) -> None:
        """Remember what was given, until kubelet tells of it."""
        now = time.monotonic()
        with self._lock:
            self._granted.update(((resource, id), now) for id in ids)


class Resource:
    """The services of one resource."""

    def __init__(self, plugin: DevicePlugin, name: str) -> None:
        self.plugin = plugin
        self.name = name
        self.endpoint = f"nvc-{hashlib.sha256(name.encode()).hexdigest()[:12]}.sock"
        self.socket: Socket | None = None
        self.registered: tuple[int, int] | None = None  # the socket of the kubelet that knows it

    def size(self) -> Size:
        """What one of it is now. Raises ClaimError when it is offered no longer."""
        for size in self.plugin.offer.sizes:
            if size.resource == self.name:
                return size
        raise ClaimError(STEP, self.name, "was removed from the configuration", "delete the pod")

    def serve(self) -> None:
        """Open the socket. Raises InitializationError."""
        methods = (
            method("GetDevicePluginOptions", pb.Empty, self.options),
            stream("ListAndWatch", pb.Empty, self.watch, self.plugin.board.touch),
            method("GetPreferredAllocation", pb.PreferredAllocationRequest, self.prefer),
            method("Allocate", pb.AllocateRequest, self.allocate),
            method("PreStartContainer", pb.PreStartContainerRequest, lambda _: pb.PreStartContainerResponse()),
        )
        self.socket = Socket(f"{self.plugin.directory}/{self.endpoint}", {"v1beta1.DevicePlugin": methods})
        self.registered = None

    def options(self, *_: object) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(get_preferred_allocation_available=True)

    def devices(self) -> pb.ListAndWatchResponse:
        """All ids, and whether they can be had."""
        offer = self.plugin.offer
        try:
            size = self.size()
        except ClaimError:
            return pb.ListAndWatchResponse()
        grants, board = self.plugin.grants, self.plugin.board
        can = usable(size, offer.devices, grants.used(self.name), grants.left(offer))
        reply = pb.ListAndWatchResponse()
        for id, device in ids_of(size, offer.devices):
            ill = board.of(device.parent or device.uuid).health == UNHEALTHY
            found = reply.devices.add(ID=id, health="Healthy" if can[id] and not ill else "Unhealthy")
            if device.numa_node >= 0:
                found.topology.nodes.add(ID=device.numa_node)
        return reply

    def watch(self, _: pb.Empty, alive: threading.Event) -> Iterator[pb.ListAndWatchResponse]:
        """The list now, and whenever it has changed."""
        told: pb.ListAndWatchResponse | None = None
        for _nothing in self.plugin.board.changes(None, alive):
            found = self.devices()
            if found != told:
                told = found
                yield found

    def prefer(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        """Which ids suit best."""
        left = self.plugin.grants.left(self.plugin.offer)
        reply = pb.PreferredAllocationResponse()
        for one in request.container_requests:
            must, count = list(one.must_include_deviceIDs), one.allocation_size
            ids = preferred(list(one.available_deviceIDs), must, count, left, self.plugin.packed)
            reply.container_responses.add(deviceIDs=ids)
        return reply

    def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """CDI devices for what kubelet has chosen.

        Raises Refused for what does not fit, with the reason for the pod.
        """
        reply = pb.AllocateResponse()
        try:
            for one in request.container_requests:
                answer = reply.container_responses.add()
                for name in self.plugin.allocate(self.size(), list(one.devices_ids)):
                    answer.cdi_devices.add(name=name)
        except NvcError as error:
            self.plugin.counts.failed("allocate")
            self.plugin.log(f"allocate {self.name}: {error.line()}")
            raise Refused(error.line()) from None
        return reply


@dataclass
class DevicePlugin:
    """All resources of the node."""

    directory: str
    board: Board
    counts: Counts
    log: Callable[[str], None]
    claims: Callable[[], list[Held]]
    names: Callable[[Size, list[str]], list[str]]  # CDI devices of ids
    registered: Callable[[tuple[str, ...]], None]  # hears which resources the kubelet knows
    packed: bool
    giving: threading.Lock  # held by who gives devices to claims, from the look at what is free until that is known

    def __post_init__(self) -> None:
        self.offer = Offer((), ())
        pods = os.path.join(os.path.dirname(self.directory), "pod-resources", KUBELET)
        self.grants = Grants(pods, self.claims)
        self.resources: dict[str, Resource] = {}
        self._problem = ""
        self._looked = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-plugin", daemon=True)

    def want(self, offer: Offer) -> None:
        """Offer this from now on."""
        self.offer = offer
        self.board.touch()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End all services; kubelet then takes the devices to be away."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        for resource in self.resources.values():
            if resource.socket is not None:
                resource.socket.stop()

    def _run(self) -> None:
        while True:
            try:
                self._look()
                self._say("")
            except (NvcError, OSError) as error:
                self._say(error.line() if isinstance(error, NvcError) else str(error))
            if self._end.wait(SOCKETS_AGAIN):
                return

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            self.log(f"device plugin: {problem}")
        self._problem = problem

    def _look(self) -> None:
        """Serve and register what is not. Raises NvcError, OSError."""
        for size in self.offer.sizes:
            resource = self.resources.setdefault(size.resource, Resource(self, size.resource))
            if resource.socket is None or not resource.socket.is_there():
                if resource.socket is not None:
                    resource.socket.stop()
                resource.serve()
        kubelet = self._kubelet()
        for resource in self.resources.values():
            if kubelet is not None and resource.registered != kubelet:
                self._register(resource)
                resource.registered = kubelet
        self.registered(
            tuple(name for name, one in self.resources.items() if kubelet and one.registered == kubelet)
        )
        now = time.monotonic()
        if kubelet is not None and (not self.grants.known or now - self._looked >= USE_AGAIN):
            self._looked = now
            if self.grants.look():
                self.board.touch()

    def _kubelet(self) -> tuple[int, int] | None:
        try:
            status = os.stat(f"{self.directory}/{KUBELET}")
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_ctime_ns

    def _register(self, resource: Resource) -> None:
        request = pb.RegisterRequest(
            version=VERSION,
            endpoint=resource.endpoint,
            resource_name=resource.name,
            options=resource.options(),
        )
        path = f"{self.directory}/{KUBELET}"
        try:
            call(path, "/v1beta1.Registration/Register", request, pb.Empty)
        except grpc.RpcError as error:
            detail = error.details() if isinstance(error, grpc.Call) else error
            raise ClaimError(f"register {resource.name}", path, detail, "it is tried again") from None
        self.counts.registrations += 1
        self.log(f"kubelet has registered {resource.name}")

    def allocate(self, size: Size, ids: list[str]) -> list[str]:
        """The CDI devices for ids of a resource. Raises ClaimError for what cannot be had together."""
        with self.giving:
            self.grants.look()
            known = dict(ids_of(size, self.offer.devices))
            uuids = [uuid_of(id) for id in ids]
            for id in ids:
                if id not in known:
                    raise ClaimError(STEP, size.resource, f"the node has no {id} any more", "delete the pod")
            if len(set(uuids)) < len(uuids):
                raise ClaimError(
                    STEP, size.resource, f"{len(ids)} slices of one device for one container",
                    "a container can have one slice of a device: ask for a larger size",
                )  # fmt: skip
            mine = self.grants.used(size.resource)
            left = self.grants.left(self.offer)
            for id in ids:
                uuid, device = uuid_of(id), known[id]
                if id not in mine and not left[uuid].fits(size, uuid):
                    what = size.name or ("a whole GPU" if device.kind == GPU else "a whole MIG device")
                    raise ClaimError(
                        STEP, size.resource, f"{what} does not fit on {device.name} ({uuid}): {left[uuid].text}",
                        "the pod is not started; its controller makes another one",
                    )  # fmt: skip
            names = self.names(size, ids)
            self.grants.grant(size.resource, ids)
        self.board.touch()
        return names
