"""A Kubernetes node: its plugin and the kubelet, what is published of it, and what is prepared on it."""

from __future__ import annotations

import glob
import os
import shlex

import nvc
from nvc.cdi.store import read_spec
from nvc.doctor import Blocked, Check, aside, failed, first, ok, unknown, warning
from nvc.errors import InitializationError, InputError
from nvc.kubernetes import give
from nvc.kubernetes.devices import devices_of
from nvc.kubernetes.errors import ApiError, CheckpointError
from nvc.kubernetes.names import CLAIMS
from nvc.kubernetes.settings import DEVICE_PLUGIN
from nvc.kubernetes.sockets import is_served
from nvc.kubernetes.topology import places
from nvc.slices.client.nvcd import ask
from nvc.slices.store import claims

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from nvc.doctor import Finding
    from nvc.doctor.cluster import Node
    from nvc.doctor.context import Context
    from nvc.kubernetes.claim import Allocation

PATIENCE = 3.0  # seconds
RESOURCES = "/apis/resource.k8s.io/v1"
LOGS = "kubectl -n nvc logs -c plugin POD, of the DaemonSet's pod on this node, says why"
ANEW = "delete the DaemonSet's pod on this node: its successor makes it anew"
_SHOWN = 6


def node_of(context: Context) -> Node:
    """The node that is looked at. Raises Blocked where none was named."""
    if context.node is None:
        raise Blocked("--kubernetes")
    return context.node


def plugin(context: Context) -> Iterator[Finding]:
    """Whether a plugin runs, and answers where the kubelet would call it."""
    node = node_of(context)
    if node.error is not None:
        yield failed(f"{node.error.path} cannot be read: {node.error.cause}", advice=ANEW)
        return
    if node.found is None:
        yield failed(
            f"no plugin has run here: {node.state}/plugin.json is missing",
            advice="see that the DaemonSet has a pod on this node; --state-dir names another directory",
        )
        return
    for path in filter(None, (node.found.registration, node.found.endpoint)):
        cause = _silent(path)
        if cause:
            yield failed(f"the plugin does not answer at {path}: {cause}", advice=LOGS)
    yield ok(f"version {node.found.version} serves {' and '.join(node.found.modes)}")


def _silent(path: str) -> str:
    """Why nobody can be reached at a socket; "" where somebody can."""
    if is_served(path):
        return ""
    return "nobody listens there" if os.path.lexists(path) else "there is no such socket"


def registration(context: Context) -> Iterator[Finding]:
    """Whether the kubelet knows the plugin's sockets, and no others."""
    one = node_of(context).record
    if one.registration and one.refused:
        yield failed(f"the kubelet has refused the driver {one.driver}: {one.refused}", advice=LOGS)
    elif one.registration and not one.registered:
        yield failed(
            f"the kubelet has not registered the driver {one.driver}",
            f"the plugin waits at {one.registration}",
            advice="the value kubeletDir must be the directory of the node's kubelet, and the kubelet must run",
        )
    missing = [name for name in one.offered if name not in one.resources]
    if DEVICE_PLUGIN in one.modes and missing:
        yield failed(
            f"the kubelet has not registered {', '.join(first(missing, _SHOWN))}",
            f"the plugin looks for kubelet.sock in {one.device_plugin_dir}",
            advice="the value kubeletDir must be the directory of the node's kubelet, and the kubelet must run",
        )
    listed = glob.glob(f"{glob.escape(one.registry_dir)}/{glob.escape(one.driver)}*reg.sock")
    for path in listed:
        if path != one.registration and _silent(path):
            yield warning(
                f"{path} is left of a plugin that was killed", commands=(f"rm {shlex.quote(path)}",),
                advice="the kubelet tries to reach it again and again",
            )  # fmt: skip
    yield ok("the kubelet has registered the plugin")


def versions(context: Context) -> Iterator[Finding]:
    """Whether plugin, nvcd and this program are of one version."""
    one = node_of(context).record
    if one.version != nvc.__version__:
        yield warning(
            f"the plugin has version {one.version}, this program {nvc.__version__}",
            advice="run /opt/nvc/current/bin/nvc-cli; or the update of the DaemonSet has not reached this node",
        )
    try:
        daemon = str(ask("alive", PATIENCE).get("version", ""))
    except InitializationError as error:
        yield ok(f"version {one.version}; nvcd does not answer: {error.cause}")
        return
    if daemon != one.version:
        yield warning(f"nvcd has version {daemon}, the plugin {one.version}", advice=ANEW)
    yield ok(f"version {one.version}")


def root(context: Context) -> Iterator[Finding]:
    """Whether the driver is where the plugin looks for it, and so is nvc's hook."""
    one = node_of(context).record
    facts, error, _ = context.asked
    if facts is None:
        yield failed(
            f"the driver in {one.root} cannot be asked: {error}",
            commands=(f"nvc-cli --root {shlex.quote(one.root)} doctor driver nodes",),
            advice="the value driverRoot says where the node has its driver",
        )
    if not os.access(one.hook_path, os.X_OK):
        yield failed(f"no container with a GPU can start: {one.hook_path} is missing", advice=ANEW)
    if facts is not None:
        yield ok(f"driver {facts.driver_label} in {one.root}")


def api(context: Context) -> Iterator[Finding]:
    """Whether the API server answers, and has dynamic resource allocation."""
    node = node_of(context)
    try:
        node.answered(RESOURCES)
    except InputError as error:
        yield unknown(
            f"the API server is not asked: {error.cause}",
            advice="run this in the DaemonSet's container `plugin`, or name a file with --kubeconfig",
        )
    except ApiError as error:
        if error.status != 404:
            yield failed(f"the API server: {error.cause}", advice=error.hint)
        elif node.serves_dra():
            yield failed(
                "the API server has no resource.k8s.io/v1: it allocates no claims",
                advice="Kubernetes 1.34 or newer has it; older clusters use the device plugin (mode=device-plugin)",
            )


def _published(node: Node) -> list[dict[str, Any]]:
    """The devices of all ResourceSlices. Raises Blocked."""
    if not node.serves_dra():
        return []
    try:
        return [device for one in node.slices() for device in one.get("spec", {}).get("devices") or ()]
    except (ApiError, InputError):
        raise Blocked("kubernetes.api") from None


def _uuid(device: dict[str, Any]) -> str:
    return str(device.get("attributes", {}).get("uuid", {}).get("string", ""))


def devices(context: Context) -> Iterator[Finding]:
    """Whether the cluster knows the devices that the node has."""
    node = node_of(context)
    if not node.serves_dra():
        yield ok("no claims are served, so nothing is published")
        return
    published = {str(one.get("name")): _uuid(one) for one in _published(node)}
    slices = node.slices()
    if not slices:
        yield failed(
            f"the API server has no ResourceSlice of {node.record.driver} for {node.record.node}",
            advice=LOGS,
        )
        return
    count = slices[0].get("spec", {}).get("pool", {}).get("resourceSliceCount")
    if count != len(slices):
        yield failed(
            f"{len(slices)} of {count} ResourceSlices are there: the scheduler takes no device", advice=LOGS
        )
    if context.facts is not None:
        here = {one.name: one.uuid for one in devices_of(context.facts, places(context.facts), {})}
        for name in sorted(here.keys() - published.keys()):
            yield failed(f"{name} ({here[name]}) is not published", advice=LOGS)
        for name in sorted(published.keys() - here.keys()):
            yield failed(f"{name} is published, and the node has no such device", advice=LOGS)
        for name in sorted(here.keys() & published.keys()):
            if here[name] != published[name]:
                yield failed(f"{name} is published as {published[name]}, and is {here[name]}", advice=LOGS)
    for one in _published(node):
        for taint in one.get("taints") or ():
            yield warning(
                f"{one['name']} has the taint {taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}",
                advice="docs/kubernetes.md, Health, says until when",
            )
    yield ok(f"published are {', '.join(sorted(published))}")


def features(context: Context) -> Iterator[Finding]:
    """Whether the API server keeps what says that devices can be shared."""
    for one in _published(node_of(context)):
        policies = [value.get("requestPolicy") for value in one.get("capacity", {}).values()]
        if not one.get("allowMultipleAllocations") or not policies or not all(policies):
            yield failed(
                f"the API server has dropped what says that {one.get('name')} can be shared",
                advice="turn on the feature gate DRAConsumableCapacity (on by default from Kubernetes 1.36)",
            )


def cdi(context: Context) -> Iterator[Finding]:
    """Whether each prepared claim has the files that a container runtime reads."""
    node = node_of(context)
    directory = node.record.cdi_dir
    if os.path.isdir(directory) and os.stat(directory).st_mode & 0o022:
        yield failed(
            f"{directory} can be written by others, and the plugin does not use it",
            commands=(f"chmod go-w {shlex.quote(directory)}",),
        )
    for allocation in node.allocations():
        yield from files_of(node, allocation)
    yield ok(f"{len(node.allocations())} claims are prepared")


def files_of(node: Node, allocation: Allocation) -> Iterator[Finding]:
    """What is wrong with the CDI documents of one claim."""
    claim = f"{allocation.namespace}/{allocation.name}"
    names: set[str] = set()
    for path in give.paths(node.outlet, allocation):
        if not os.path.lexists(path):
            yield failed(f"{path} of claim {claim} is missing: its containers cannot start", advice=ANEW)
            continue
        found = read_spec(path)
        if found.problems:
            yield failed(
                f"{path} of claim {claim} is damaged: {found.problems[0]}",
                commands=(aside(path),),
                advice=ANEW,
            )
            continue
        names |= {f"{found.document['kind']}={one['name']}" for one in found.document["devices"]}
        for program in sorted(
            {hook["path"] for hook in _hooks(found.document) if not os.path.exists(hook["path"])}
        ):
            yield failed(f"{path} of claim {claim} names {program}, which is missing", advice=ANEW)
    wanted = {give.device_name(allocation, place) for place in range(len(allocation.given))}
    if names and not wanted <= names:
        yield failed(f"claim {claim} has no CDI device {min(wanted - names)}", advice=ANEW)


def _hooks(document: dict[str, Any]) -> list[dict[str, Any]]:
    edits = [document.get("containerEdits") or {}, *(one["containerEdits"] for one in document["devices"])]
    return [hook for one in edits for hook in one.get("hooks") or ()]


def kept(context: Context) -> Iterator[Finding]:
    """Whether what the plugin keeps of claims can be read, and their slices are there."""
    node = node_of(context)
    held = claims.held_uids()
    for one in node.prepared():
        if isinstance(one, CheckpointError):
            yield failed(
                f"{one.path} cannot be read: {one.cause}", commands=(aside(one.path),),
                advice="while it is there, the plugin cannot say what is left of the devices",
            )  # fmt: skip
        elif node.record.shares and one.uid not in held and not all(given.whole for given in one.given):
            yield failed(f"the slices of claim {one.namespace}/{one.name} are gone", advice=ANEW)


def leftovers(context: Context) -> Iterator[Finding]:
    """Whether anything is left of claims that are gone."""
    node = node_of(context)
    known = {one.uid for one in node.allocations()}
    unread = any(isinstance(one, CheckpointError) for one in node.prepared())
    strays = (give.uids_there(node.outlet) | claims.held_uids()) - known
    if strays and not unread:
        yield warning(
            f"files or slices are left of claims that are not prepared: {len(strays)}",
            *first((f"claim {uid}" for uid in sorted(strays)), _SHOWN),
            advice="delete the DaemonSet's pod on this node: its successor removes them",
        )
    for one in node.allocations():
        try:
            claim = node.answered(CLAIMS.format(one.namespace, one.name))
        except InputError:
            raise Blocked("kubernetes.api") from None
        except ApiError as error:
            if error.status != 404:
                raise Blocked("kubernetes.api") from None
            claim = {}
        if claim.get("metadata", {}).get("uid") != one.uid:
            yield warning(
                f"claim {one.namespace}/{one.name} is gone, and what was prepared for it is still here",
                f"claim {one.uid}",
                advice="the plugin removes it within ten minutes of its pod's end, and when it starts",
            )


CHECKS = (
    Check("kubernetes.plugin", "whether the plugin of this node runs and answers", plugin),
    Check(
        "kubernetes.registration", "whether the kubelet has registered the plugin's sockets", registration
    ),
    Check("kubernetes.versions", "versions of the plugin, of nvcd and of this program", versions),
    Check("kubernetes.driver", "the driver where the plugin looks for it, and nvc's hook", root),
    Check("kubernetes.api", "whether the API server answers, and allocates claims", api),
    Check("kubernetes.devices", "what is published against what the node has; taints", devices),
    Check("kubernetes.features", "feature gates that slices need, as far as objects show them", features),
    Check("kubernetes.cdi", "CDI files of prepared claims", cdi),
    Check("kubernetes.claims", "what the plugin keeps of claims, and their slices", kept),
    Check("kubernetes.leftovers", "what is left of claims that are gone", leftovers),
)
