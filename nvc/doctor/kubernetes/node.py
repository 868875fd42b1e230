"""A Kubernetes node: its plugin and the kubelet, what is published of it, and what is prepared on it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import nvc
from nvc.base.errors import InitializationError, InputError
from nvc.doctor import FAILED, OK, UNKNOWN, WARNING, Check, Fact, Row, aside, first
from nvc.doctor.context import Context
from nvc.doctor.kubernetes.cluster import Node, node_of
from nvc.frontends.cdi.stamp import parts_of
from nvc.frontends.cdi.store import read_spec
from nvc.kubernetes.claims import give
from nvc.kubernetes.claims.claim import Allocation
from nvc.kubernetes.claims.devices import devices_of
from nvc.kubernetes.claims.topology import places
from nvc.kubernetes.errors import ApiError, CheckpointError
from nvc.kubernetes.plugin.settings import DEVICE_PLUGIN
from nvc.kubernetes.plugin.sockets import is_served
from nvc.model.slices import quota
from nvc.model.slices.layout import NO_LIMIT
from nvc.slices.client.nvcd import ask
from nvc.slices.store import claims, registry

PATIENCE = 3.0  # seconds
RESOURCES = "/apis/resource.k8s.io/v1"
_SHOWN = 6


def _plugin(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    if node.found is None:
        error = node.error
        yield Fact(state=node.state, path=error.path if error else "", cause=error.cause if error else "")
        return
    for path in filter(None, (node.found.registration, node.found.endpoint)):
        there = "nobody listens there" if os.path.lexists(path) else "there is no such socket"
        yield Fact(socket=path, silent="" if is_served(path) else there)
    yield Fact(version=node.found.version, modes=" and ".join(node.found.modes))


def _registration(context: Context) -> Iterator[Fact]:
    one = node_of(context).record
    missing = [name for name in one.offered if name not in one.resources and DEVICE_PLUGIN in one.modes]
    if one.registration and not one.registered or one.refused:
        yield Fact(driver=one.driver, refused=one.refused, socket=one.registration)
    if missing:
        yield Fact(resources=", ".join(first(missing, _SHOWN)), directory=one.device_plugin_dir)


def _versions(context: Context) -> Iterator[Fact]:
    plugin = node_of(context).record.version
    yield Fact(plugin=plugin, own=nvc.__version__)
    try:
        yield Fact(plugin=plugin, nvcd=str(ask("alive", PATIENCE).get("version", "")), own=plugin)
    except InitializationError:
        pass  # vgpu.daemon says whether that matters


def _driver(context: Context) -> Iterator[Fact]:
    one = node_of(context).record
    facts, error, _ = context.asked
    yield Fact(root=one.root, quoted=shlex.quote(one.root), error=error, driver=facts and facts.driver_label)
    yield Fact(root=one.root, hook=one.hook_path, missing=not os.access(one.hook_path, os.X_OK))


def _api(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    try:
        node.answered(RESOURCES)
    except InputError as error:
        yield Fact(unknown=error.cause)
    except ApiError as error:
        yield Fact(cause=error.cause, hint=error.hint, old=error.status == 404, prepares=node.prepares)


def _devices(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    if not node.prepares:
        return
    if not node.slices:
        yield Fact(driver=node.record.driver, node=node.record.node)
        return
    count = node.slices[0].get("spec", {}).get("pool", {}).get("resourceSliceCount")
    yield Fact(count=len(node.slices), wanted=count)
    published = {str(one.get("name")): one.get("attributes", {}).get("uuid", {}).get("string", "")
                 for one in node.devices}  # fmt: skip
    here = {one.name: one.uuid for one in devices_of(context.facts, places(context.facts), {})}
    for name in sorted(here.keys() | published.keys()):
        yield Fact(name=name, here=here.get(name), published=published.get(name))
    for one in node.devices:
        for taint in one.get("taints") or ():
            text = f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}"
            yield Fact(name=one.get("name"), taint=text)
    yield Fact(all=", ".join(sorted(published)))


def _features(context: Context) -> Iterator[Fact]:
    """An API server without a feature drops the fields that it adds."""
    for one in node_of(context).devices:
        policies = [value.get("requestPolicy") for value in one.get("capacity", {}).values()]
        if not one.get("allowMultipleAllocations") or not policies or not all(policies):
            yield Fact(name=one.get("name"))


def _cdi(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    for allocation in node.allocations:
        yield from files_of(node, allocation)
    yield Fact(count=len(node.allocations))


def files_of(node: Node, allocation: Allocation) -> Iterator[Fact]:
    """The CDI documents of one claim, and what is wrong with them."""
    claim, names = f"{allocation.namespace}/{allocation.name}", set()
    for path in give.paths(node.outlet, allocation):
        fact = Fact(claim=claim, path=path, missing=not os.path.lexists(path), aside=aside(path))
        yield fact
        if fact.missing:
            return
        found = read_spec(path)
        if found.problems:
            fact.damage = found.problems[0]
            yield fact
            return
        names |= set(found.devices())
        for program in sorted({hook["path"] for hook in parts_of(found.document, "hooks")}):
            if not os.path.exists(program):
                yield Fact(claim=claim, path=path, program=program)
    lacking = {give.device_name(allocation, place) for place in range(len(allocation.given))} - names
    if lacking:
        yield Fact(claim=claim, device=min(lacking))


def _kept(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    for one in node.prepared:
        if isinstance(one, CheckpointError):
            yield Fact(unread=one.path, cause=one.cause, aside=aside(one.path))
        else:
            yield from slices_of(node, one)


def slices_of(node: Node, allocation: Allocation) -> Iterator[Fact]:
    """The slices of one claim that the plugin has made, and what is wrong with them."""
    for place, given in enumerate(allocation.given if node.record.shares else ()):
        path = f"{registry.base_directory()}/{claims.key_of(f'{allocation.uid}-{place}')}"
        fact = Fact(request=given.request, claim=f"{allocation.namespace}/{allocation.name}", path=path)
        if given.whole:
            continue
        try:
            fd = os.open(f"{path}/quota", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            fact.gone = True
            yield fact
            continue
        try:
            limits = {quota.uuid_bytes(device.uuid): device.memory_limit for device in quota.read(fd)}
            fact.has, fact.given = _size(limits.get(quota.uuid_bytes(given.uuid), 0)), _size(given.limit)
        except quota.QuotaError as error:
            fact.broken = error.cause
        finally:
            os.close(fd)
        yield fact


def _size(limit: int) -> str:
    return "all memory" if limit == NO_LIMIT else f"{limit >> 20} MiB"


def _leftovers(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    strays = (give.uids_there(node.outlet) | claims.held_uids()) - {one.uid for one in node.allocations}
    if strays and len(node.allocations) == len(node.prepared):  # else one of them may be of what cannot be read
        yield Fact(count=len(strays), seen=first((f"claim {uid}" for uid in sorted(strays)), _SHOWN))
    for one in node.allocations:
        if node.claim(one.namespace, one.name).get("metadata", {}).get("uid") != one.uid:
            yield Fact(claim=f"{one.namespace}/{one.name}", seen=[f"claim {one.uid}"])


LOGS = "kubectl -n nvc logs -c plugin POD, of the DaemonSet's pod on this node, says why"
ANEW = "delete the DaemonSet's pod on this node: its successor makes it anew"
_KUBELET = "the value kubeletDir must be the directory of the node's kubelet, and the kubelet must run"
FILES = (
    Row(FAILED, "{path} of claim {claim} is missing: its containers cannot start", "missing", advice=ANEW),
    Row(FAILED, "{path} of claim {claim} is damaged: {damage}", "damage", run=("{aside}",), advice=ANEW),
    Row(FAILED, "{path} of claim {claim} names {program}, which is missing", "program", advice=ANEW),
    Row(FAILED, "claim {claim} has no CDI device {device}", "device", advice=ANEW),
)  # fmt: skip
SLICES = (
    Row(FAILED, "the slice of request {request} of claim {claim} is gone: {path}", "gone", advice=ANEW),
    Row(FAILED, "the slice of request {request} of claim {claim} is broken: {broken}", "broken", advice=ANEW),
    Row(FAILED, "the slice of request {request} of claim {claim} has {has}, it was allocated {given}",
        lambda it: it.has != it.given, advice=ANEW),
)  # fmt: skip
CHECKS = (
    Check("kubernetes.plugin", "whether the plugin of this node runs and answers", _plugin, (
        Row(FAILED, "{path} cannot be read: {cause}", "path", advice=ANEW),
        Row(FAILED, "no plugin has run here: {state}/plugin.json is missing", "state",
            advice="see that the DaemonSet has a pod on this node; --state-dir names another directory"),
        Row(FAILED, "the plugin does not answer at {socket}: {silent}", "silent", advice=LOGS),
        Row(OK, "version {version} serves {modes}", "version"),
    )),
    Check("kubernetes.registration", "whether the kubelet has registered the plugin's sockets", _registration, (
        Row(FAILED, "the kubelet has refused the driver {driver}: {refused}", "refused", advice=LOGS),
        Row(FAILED, "the kubelet has not registered the driver {driver}", "driver",
            seen=("the plugin waits at {socket}",), advice=_KUBELET),
        Row(FAILED, "the kubelet has not registered {resources}", "resources",
            seen=("the plugin looks for kubelet.sock in {directory}",), advice=_KUBELET),
    )),
    Check("kubernetes.versions", "versions of the plugin, of nvcd and of this program", _versions, (
        Row(WARNING, "nvcd has version {nvcd}, the plugin {plugin}", lambda it: it.nvcd and it.nvcd != it.own,
            advice=ANEW),
        Row(WARNING, "the plugin has version {plugin}, this program {own}", lambda it: it.plugin != it.own,
            advice="run /opt/nvc/current/bin/nvc-cli; or the update of the DaemonSet has not reached this node"),
        Row(OK, "version {plugin}"),
    )),
    Check("kubernetes.driver", "the driver where the plugin looks for it, and nvc's hook", _driver, (
        Row(FAILED, "the driver in {root} cannot be asked: {error}", "error",
            run=("nvc-cli --root {quoted} doctor driver nodes",),
            advice="the value driverRoot says where the node has its driver"),
        Row(FAILED, "no container with a GPU can start: {hook} is missing", "missing", advice=ANEW),
        Row(OK, "driver {driver} in {root}", "driver"),
    )),
    Check("kubernetes.api", "whether the API server answers, and allocates claims", _api, (
        Row(UNKNOWN, "the API server is not asked: {unknown}", "unknown",
            advice="run this in the DaemonSet's container `plugin`, or name a file with --kubeconfig"),
        Row(FAILED, "the API server has no resource.k8s.io/v1: it allocates no claims",
            lambda it: it.old and it.prepares,
            advice="Kubernetes 1.34 or newer has it; older clusters use the device plugin (mode=device-plugin)"),
        Row(FAILED, "the API server: {cause}", lambda it: not it.old, advice="{hint}"),
    )),
    Check("kubernetes.devices", "what is published against what the node has; taints", _devices, (
        Row(FAILED, "the API server has no ResourceSlice of {driver} for {node}", "node", advice=LOGS),
        Row(FAILED, "{count} of {wanted} ResourceSlices are there: the scheduler takes no device",
            lambda it: it.count != it.wanted, advice=LOGS),
        Row(WARNING, "{name} has the taint {taint}", "taint",
            advice="docs/kubernetes-operate.md, Health, says until when"),
        Row(FAILED, "{name} ({here}) is not published", lambda it: it.published is None, advice=LOGS),
        Row(FAILED, "{name} is published, and the node has no such device", lambda it: it.here is None,
            advice=LOGS),
        Row(FAILED, "{name} is published as {published}, and is {here}", lambda it: it.published != it.here,
            advice=LOGS),
        Row(OK, "published are {all}", "all"),
    )),
    Check("kubernetes.features", "feature gates that slices need, as far as objects show them", _features, (
        Row(FAILED, "the API server has dropped what says that {name} can be shared",
            advice="turn on the feature gate DRAConsumableCapacity (on by default from Kubernetes 1.36)"),
    )),
    Check("kubernetes.cdi", "CDI files of prepared claims", _cdi, (
        *FILES,
        Row(OK, "{count} claims are prepared", lambda it: not it.claim),
    )),
    Check("kubernetes.claims", "what the plugin keeps of claims, and their slices", _kept, (
        Row(FAILED, "{unread} cannot be read: {cause}", "unread", run=("{aside}",),
            advice="while it is there, the plugin cannot say what is left of the devices"),
        *SLICES,
    )),
    Check("kubernetes.leftovers", "what is left of claims that are gone", _leftovers, (
        Row(WARNING, "files or slices are left of claims that are not prepared: {count}", "count",
            advice="delete the DaemonSet's pod on this node: its successor removes them"),
        Row(WARNING, "claim {claim} is gone, and what was prepared for it is still here",
            advice="the plugin removes it within ten minutes of its pod's end, and when it starts"),
    )),
)  # fmt: skip
