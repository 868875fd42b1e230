"""kubelet as a plugin meets it: it finds registrations, calls services, and takes device plugins in."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from nvc.kernel import LinuxKernel
from nvc.kubernetes.plugin.sockets import places_of
from nvc.kubernetes.protocol import (
    deviceplugin_pb2,
    dra_pb2,
    health_pb2,
    podresources_pb2,
    registration_pb2,
)
from nvc.slices.store import claims, registry

from . import CLEAN_ENV, PATIENCE, until
from .apiserver import CLAIMS, ApiServer
from .sources import read
from .vgpu import ensure_shim

DRIVER = "gpu.nvc.dev"
NODE = "node-a"


def raw(message: Any) -> bytes:
    return message.SerializeToString()


class Kubelet:
    """One kubelet with its directories below `directory`. To be closed."""

    def __init__(self, directory: str) -> None:
        self.plugins = f"{directory}/plugins"
        self.registry = f"{directory}/plugins_registry"
        self.device_plugins = f"{directory}/device-plugins"
        self.pod_resources = f"{directory}/pod-resources"
        for path in (self.plugins, self.registry, self.device_plugins, self.pod_resources):
            os.makedirs(path, exist_ok=True)
        self.pods = podresources_pb2.ListPodResourcesResponse()
        self.silent = False  # whether it refuses to say who has what
        self.registered: queue.Queue[deviceplugin_pb2.RegisterRequest] = queue.Queue()
        self._channels: list[grpc.Channel] = []
        self._server: grpc.Server | None = None
        self.streams: list[Any] = []

    def close(self) -> None:
        for stream in self.streams:
            stream.cancel()
        for channel in self._channels:
            channel.close()
        if self._server is not None:
            self._server.stop(None).wait()

    def channel(self, path: str) -> grpc.Channel:
        found = grpc.insecure_channel(f"unix:{path}", (("grpc.default_authority", "localhost"),))
        self._channels.append(found)
        return found

    def call(self, path: str, method: str, request: Any, reply: Any) -> Any:
        """One call at a socket."""
        ask: Any = self.channel(path).unary_unary(
            method, request_serializer=raw, response_deserializer=reply.FromString
        )
        return ask(request, timeout=PATIENCE, wait_for_ready=True)

    def stream(self, path: str, method: str, request: Any, reply: Any) -> Any:
        """The messages of a stream, as they come."""
        ask: Any = self.channel(path).unary_stream(
            method, request_serializer=raw, response_deserializer=reply.FromString
        )
        found = ask(request, wait_for_ready=True)
        self.streams.append(found)
        return found

    def register(self, instance: str = "", refusal: str = "") -> registration_pb2.PluginInfo:
        """Find the driver's registration, as kubelet does at its start and when the socket comes."""
        path = places_of(DRIVER, self.plugins, self.registry, "", instance).registration
        until(lambda: os.path.exists(path), lambda: f"no {path}")
        service = "/pluginregistration.Registration"
        info: registration_pb2.PluginInfo = self.call(
            path, f"{service}/GetInfo", registration_pb2.InfoRequest(), registration_pb2.PluginInfo
        )
        status, reply = registration_pb2.RegistrationStatus, registration_pb2.RegistrationStatusResponse
        self.call(
            path,
            f"{service}/NotifyRegistrationStatus",
            status(plugin_registered=not refusal, error=refusal),
            reply,
        )
        self.endpoint = info.endpoint
        return info

    def _claims(self, method: str, request: Any, reply: Any, claims: tuple[dict[str, Any], ...]) -> Any:
        for claim in claims:
            meta = claim["metadata"]
            request.claims.add(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
        return self.call(
            self.endpoint, f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}", request, reply
        ).claims

    def prepare(self, *claims: dict[str, Any]) -> Any:
        """The entries of the reply by UID."""
        return self._claims(
            "NodePrepareResources",
            dra_pb2.NodePrepareResourcesRequest(),
            dra_pb2.NodePrepareResourcesResponse,
            claims,
        )

    def unprepare(self, *claims: dict[str, Any]) -> Any:
        """The same the other way round."""
        request, reply = dra_pb2.NodeUnprepareResourcesRequest(), dra_pb2.NodeUnprepareResourcesResponse
        return self._claims("NodeUnprepareResources", request, reply, claims)

    def health(self) -> Iterator[dict[str, Any]]:
        """The health of devices by name, at each message."""
        method = "/v1alpha1.DRAResourceHealth/NodeWatchResources"
        request, reply = health_pb2.NodeWatchResourcesRequest(), health_pb2.NodeWatchResourcesResponse
        for message in self.stream(self.endpoint, method, request, reply):
            yield {one.device.device_name: one for one in message.devices}

    def resources(self, count: int) -> dict[str, Resource]:
        """The next resources that register, by name."""
        found = [Resource(self, self.registered.get(timeout=PATIENCE)) for _ in range(count)]
        return {one.name: one for one in found}

    def uses(self, **ids: tuple[str, ...]) -> None:
        """Say of pods that they have these ids of nvidia.com/NAME; `_` in the name is a dash."""
        self.pods = podresources_pb2.ListPodResourcesResponse()
        for name, own in ids.items():
            container = self.pods.pod_resources.add(name="p", namespace="n").containers.add(name="c")
            container.devices.add(resource_name=f"nvidia.com/{name.replace('_', '-')}", device_ids=own)

    def serve(self) -> None:
        """Start anew: sockets of device plugins go, and they may register."""
        if self._server is not None:
            self._server.stop(None).wait()
        for name in os.listdir(self.device_plugins):
            os.unlink(f"{self.device_plugins}/{name}")

        def register(request: Any, _: object) -> Any:
            self.registered.put(request)
            return deviceplugin_pb2.Empty()

        handler = grpc.unary_unary_rpc_method_handler(
            register,
            request_deserializer=deviceplugin_pb2.RegisterRequest.FromString,
            response_serializer=raw,
        )
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )

        def listed(_: object, context: grpc.ServicerContext) -> Any:
            if self.silent:
                context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            return self.pods

        listing = grpc.unary_unary_rpc_method_handler(
            listed,
            request_deserializer=podresources_pb2.ListPodResourcesRequest.FromString,
            response_serializer=raw,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": listing}),)
        )
        self._server.add_insecure_port(f"unix:{self.device_plugins}/kubelet.sock")
        self._server.add_insecure_port(f"unix:{self.pod_resources}/kubelet.sock")
        self._server.start()


class Resource:
    """One resource of a device plugin that has registered."""

    def __init__(self, kubelet: Kubelet, request: deviceplugin_pb2.RegisterRequest) -> None:
        self.kubelet = kubelet
        self.name = request.resource_name
        self.path = f"{kubelet.device_plugins}/{request.endpoint}"
        self.stream = kubelet.stream(
            self.path,
            "/v1beta1.DevicePlugin/ListAndWatch",
            deviceplugin_pb2.Empty(),
            deviceplugin_pb2.ListAndWatchResponse,
        )

    def listed(self) -> list[deviceplugin_pb2.Device]:
        """The next list."""
        return list(next(self.stream).devices)

    def until(self, healthy: int) -> list[str]:
        """The ids that can be had, once there are so many."""
        for message in self.stream:
            found = [device.ID for device in message.devices if device.health == "Healthy"]
            if len(found) == healthy:
                return found
        raise AssertionError("the stream ended")

    def prefer(self, ids: list[str], count: int, must: tuple[str, ...] = ()) -> list[str]:
        """The ids that suit best."""
        request = deviceplugin_pb2.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=ids, must_include_deviceIDs=must, allocation_size=count
        )
        method, reply = "GetPreferredAllocation", deviceplugin_pb2.PreferredAllocationResponse
        found = self.kubelet.call(self.path, f"/v1beta1.DevicePlugin/{method}", request, reply)
        return list(found.container_responses[0].deviceIDs)

    def allocate(self, *ids: str) -> list[str]:
        """Names of CDI devices. Raises grpc.RpcError."""
        request, reply = deviceplugin_pb2.AllocateRequest(), deviceplugin_pb2.AllocateResponse
        request.container_requests.add(devices_ids=ids)
        found = self.kubelet.call(self.path, "/v1beta1.DevicePlugin/Allocate", request, reply)
        return [device.name for device in found.container_responses[0].cdi_devices]


class Plugin:
    """nvc-kubelet-plugin as a process, for one kubelet, API server and simulated driver. To be closed."""

    def __init__(self, stage: str, directory: str, root: str, kubelet: Kubelet, api: ApiServer) -> None:
        self.program = f"{stage}/bin/nvc-kubelet-plugin"
        self.directory = directory
        self.root = root
        self.kubelet = kubelet
        self.api = api
        self.cdi = f"{directory}/cdi"
        self.state = f"{directory}/state"
        self.log = f"{directory}/plugin.log"
        self.config = ""  # path of a configuration file
        self.wrapper: tuple[str, ...] = ()  # a program that starts it
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *words: str) -> None:
        """Start it, or another one after it has ended."""
        options = {
            "node-name": NODE,
            "kubeconfig": self.api.kubeconfig(),
            "root": self.root,
            "cdi-dir": self.cdi,
            "state-dir": self.state,
            "kubelet-plugins-dir": self.kubelet.plugins,
            "registry-dir": self.kubelet.registry,
            "device-plugin-dir": self.kubelet.device_plugins,
        }
        argv = [
            *self.wrapper,
            self.program,
            *(f"--{name}={value}" for name, value in options.items()),
            *words,
        ]
        if self.config:
            argv.append(f"--config={self.config}")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                argv, env=CLEAN_ENV, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def said(self, text: str) -> str:
        """The log, once it has this."""

        def log_text() -> str:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                data = file.read()
            assert self.process is not None and (text in data or self.process.poll() is None), data
            return data if text in data else ""

        return until(log_text, lambda: f"never said: {text}")

    def threads(self, pid: int) -> list[int]:
        """Threads of one of its processes but for the main one."""
        return [tid for tid in map(int, os.listdir(f"/proc/{pid}/task")) if tid != pid]

    def worker(self) -> int:
        """The process behind the one that the kubelet talks to."""
        assert self.process is not None
        (pid,) = children(self.process.pid)
        return pid

    def asker(self) -> int:
        """The process that asks NVML."""
        keeper = children(self.worker())[0]  # the eldest; another one may look at the driver just now
        (asker,) = children(keeper)
        return asker

    def kill(self) -> None:
        """End it at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> int:
        """End it as kubelet does a pod; its exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.kill()
            self.process = None

    def files(self) -> list[str]:
        """Names in the directory of CDI."""
        return sorted(os.listdir(self.cdi)) if os.path.isdir(self.cdi) else []

    def claims(self) -> list[str]:
        """UIDs of the claims that it remembers."""
        directory = f"{self.state}/claims"
        return (
            sorted(name.removesuffix(".json") for name in os.listdir(directory))
            if os.path.isdir(directory)
            else []
        )


def children(pid: int) -> list[int]:
    """Those of a process, in the order of their beginning."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def add(api: ApiServer, made: dict[str, Any]) -> dict[str, Any]:
    """Have the API server know a claim."""
    path = CLAIMS.format(made["metadata"]["namespace"])
    return api.put(f"{path}/{made['metadata']['name']}", made)


def forget() -> None:
    """Remove the slices of claims: all tests of one process have one registry."""
    for uid in claims.held_uids():
        claims.release(LinuxKernel(), uid)
    registry.prune(LinuxKernel(), registry.base_directory())


@pytest.fixture
def api(scratch: str) -> Iterator[ApiServer]:
    server = ApiServer(f"{scratch}/api")
    server.node(NODE)
    yield server
    server.close()
    assert {right for right in map(right_of, server.requests) if right} <= granted()


def granted() -> set[tuple[str, str, str]]:
    """The rights that the chart gives the plugin."""
    rule = r'apiGroups: \["?([\w.]*)"?\]\n +resources: \[([\w/]+)\]\n +verbs: \[(.*)\]'
    found = re.findall(rule, read("packaging/kubernetes/chart/templates/rbac.yaml"))
    return {(group, resource, verb) for group, resource, verbs in found for verb in verbs.split(", ")}


def right_of(request: str) -> tuple[str, str, str] | None:
    """Group, resource and verb of `METHOD PATH`; None: everybody may do that."""
    method, path = request.split(" ")
    parts = path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[2 if parts[0] == "api" else 3 :]
    rest = rest[2:] if rest[:1] == ["namespaces"] else rest
    verb = {
        "GET": "get" if len(rest) > 1 else "list",
        "WATCH": "watch",
        "POST": "create",
        "PUT": "update",
        "PATCH": "patch",
        "DELETE": "delete",
    }[method]
    return (group, "/".join(rest[::2]), verb) if rest else None


@pytest.fixture
def kubelet(scratch: str) -> Iterator[Kubelet]:
    found = Kubelet(f"{scratch}/kubelet")
    yield found
    found.close()


@pytest.fixture
def plugin(stage: str, scratch: str, driver: str, api: ApiServer, kubelet: Kubelet) -> Iterator[Plugin]:
    """A plugin that runs, and that kubelet has registered."""
    ensure_shim(stage, scratch)
    found = Plugin(stage, scratch, driver, kubelet, api)
    found.start()
    found.said(": ready")
    kubelet.register()
    yield found
    found.close()
    forget()
