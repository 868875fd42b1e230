"""A Kubernetes node: its plugin and the kubelet, what is published of it, and what is prepared on it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from nvc.base.errors import InputError
from nvc.base.files import closing
from nvc.doctor import FAILED, OK, UNKNOWN, WARNING, Check, Fact, Row, aside, first
from nvc.doctor.context import Context
from nvc.doctor.kubernetes.cluster import Node, node_of
from nvc.frontends.cdi.stamp import parts_of
from nvc.frontends.cdi.store import read_spec
from nvc.kubernetes.claims import give
from nvc.kubernetes.claims.claim import Allocation, Given
from nvc.kubernetes.claims.devices import devices_of
from nvc.kubernetes.claims.topology import places
from nvc.kubernetes.errors import ApiError, CheckpointError
from nvc.kubernetes.plugin.settings import DEVICE_PLUGIN
from nvc.kubernetes.plugin.sockets import is_served
from nvc.model.slices import quota
from nvc.model.slices.layout import NO_LIMIT
from nvc.slices.store import claims, registry

RESOURCES = "/apis/resource.k8s.io/v1"
_SHOWN = 6


def _plugin(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    if node.found is None:
        yield Fact(unread=node.error, state=node.state)
        return
    for path in filter(None, (node.found.registration, node.found.endpoint)):
        if not is_served(path):
            why = "nobody listens there" if os.path.lexists(path) else "there is no such socket"
            yield Fact(silent=path, why=why)
    yield Fact(version=node.found.version, modes=" and ".join(node.found.modes))


def _registration(context: Context) -> Iterator[Fact]:
    one = node_of(context).record
    missing = [name for name in one.offered if name not in one.resources and DEVICE_PLUGIN in one.modes]
    if one.registration and not one.registered or one.refused:
        yield Fact(driver=one.driver, refused=one.refused, seen=[f"the plugin waits at {one.registration}"])
    if missing:
        yield Fact(resources=", ".join(first(missing, _SHOWN)),
                   seen=[f"the plugin looks for kubelet.sock in {one.device_plugin_dir}"])  # fmt: skip


def _driver(context: Context) -> Iterator[Fact]:
    one = node_of(context).record
    _, error, _ = context.asked
    if error is not None:
        yield Fact(root=one.root, error=error, run=[f"nvc-cli --root {shlex.quote(one.root)} doctor driver nodes"])
    if not os.access(one.hook_path, os.X_OK):
        yield Fact(hook=one.hook_path)


def _api(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    try:
        node.api.get(RESOURCES)
    except InputError as error:
        yield Fact(unknown=error.cause)
    except ApiError as error:
        if error.status != 404:
            yield Fact(cause=error.cause, advice=error.hint)
        elif node.prepares:
            yield Fact()


def _devices(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    if not node.prepares:
        return
    if not node.slices:
        yield Fact(driver=node.record.driver, node=node.record.node)
        return
    count = node.slices[0].get("spec", {}).get("pool", {}).get("resourceSliceCount")
    if count != len(node.slices):
        yield Fact(count=len(node.slices), wanted=count)
    published = {str(one.get("name")): one.get("attributes", {}).get("uuid", {}).get("string", "")
                 for one in node.devices}  # fmt: skip
    here = {one.name: one.uuid for one in devices_of(context.facts, places(context.facts), {})}
    for name in sorted(here.keys() | published.keys()):
        if here.get(name) != published.get(name):
            yield Fact(name=name, here=here.get(name, "not here"), published=published.get(name, "nothing"))
    for one in node.devices:
        for taint in one.get("taints") or ():
            yield Fact(tainted=one.get("name"), key=taint.get("key"), value=taint.get("value", ""),
                       effect=taint.get("effect"))  # fmt: skip
    yield Fact(all=", ".join(sorted(published)) or "no devices")


def _features(context: Context) -> Iterator[Fact]:
    """An API server without a feature drops the fields that it adds."""
    for one in node_of(context).devices:
        policies = [value.get("requestPolicy") for value in one.get("capacity", {}).values()]
        if not one.get("allowMultipleAllocations") or not policies or not all(policies):
            yield Fact(name=one.get("name"))


def _cdi(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    for allocation in node.allocations:
        yield from _files_of(node, allocation)
    yield Fact(count=len(node.allocations))


def _files_of(node: Node, one: Allocation) -> Iterator[Fact]:
    """What is wrong with the CDI documents of one claim."""
    names: set[str] = set()
    for path in give.paths(node.outlet, one):
        found = read_spec(path)
        if found.problems:
            damaged = os.path.lexists(path)
            problem = f"is damaged: {found.problems[0]}" if damaged else "is missing"
            yield Fact(one=one, path=path, problem=problem, run=[aside(path)] if damaged else [])
            return
        names.update(found.devices())
        for program in sorted({hook["path"] for hook in parts_of(found.document, "hooks")}):
            if not os.path.exists(program):
                yield Fact(one=one, path=path, problem=f"names {program}, which is missing")
    lacking = {give.device_name(one, place) for place in range(len(one.given))} - names
    if lacking:
        yield Fact(one=one, device=min(lacking))


def _kept(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    for one in node.prepared:
        if isinstance(one, CheckpointError):
            yield Fact(unread=one, run=[aside(one.path)])
        elif node.record.shares:
            yield from _slices_of(one)


def _slices_of(one: Allocation) -> Iterator[Fact]:
    """What is wrong with the slices of one claim that the plugin has made."""
    for place, given in enumerate(one.given):
        path = f"{registry.base_directory()}/{claims.key_of(f'{one.uid}-{place}')}"
        problem = "" if given.whole else _problem_of(f"{path}/quota", given)
        if problem:
            yield Fact(one=one, request=given.request, problem=problem)


def _problem_of(path: str, given: Given) -> str:
    """What is wrong with the quota of a slice; "" for nothing."""
    try:
        with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            limits = {quota.uuid_bytes(device.uuid): device.memory_limit for device in quota.read(fd)}
    except FileNotFoundError:
        return f"is gone: {path}"
    except quota.QuotaError as error:
        return f"is broken: {error.cause}"
    has = limits.get(quota.uuid_bytes(given.uuid), 0)
    return "" if has == given.limit else f"has {_size(has)}, it was allocated {_size(given.limit)}"


def _size(limit: int) -> str:
    return "all memory" if limit == NO_LIMIT else f"{limit >> 20} MiB"


def _leftovers(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    strays = (give.uids_there(node.outlet) | claims.held_uids()) - {one.uid for one in node.allocations}
    if strays and len(node.allocations) == len(node.prepared):  # else one of them may be of what cannot be read
        yield Fact(count=len(strays), seen=first((f"claim {uid}" for uid in sorted(strays)), _SHOWN))


LOGS = "kubectl -n nvc logs -c plugin POD, of the DaemonSet's pod on this node, says why"
ANEW = "delete the DaemonSet's pod on this node: its successor makes it anew"
_KUBELET = "the value kubeletDir must be the directory of the node's kubelet, and the kubelet must run"
CHECKS = (
    Check("kubernetes.plugin", "whether the plugin of this node runs and answers", _plugin, (
        Row(FAILED, "{unread.path} cannot be read: {unread.cause}", "unread", advice=ANEW),
        Row(FAILED, "no plugin has run here: {state}/plugin.json is missing", "state",
            advice="see that the DaemonSet has a pod on this node; --state-dir names another directory"),
        Row(FAILED, "the plugin does not answer at {silent}: {why}", "silent", advice=LOGS),
        Row(OK, "version {version} serves {modes}"),
    )),
    Check("kubernetes.registration", "whether the kubelet has registered the plugin's sockets", _registration, (
        Row(FAILED, "the kubelet has refused the driver {driver}: {refused}", "refused", advice=LOGS),
        Row(FAILED, "the kubelet has not registered the driver {driver}", "driver", advice=_KUBELET),
        Row(FAILED, "the kubelet has not registered {resources}", advice=_KUBELET),
    )),
    Check("kubernetes.driver", "the driver where the plugin looks for it, and nvc's hook", _driver, (
        Row(FAILED, "the driver in {root} cannot be asked: {error}", "error",
            advice="the value driverRoot says where the node has its driver"),
        Row(FAILED, "no container with a GPU can start: {hook} is missing", advice=ANEW),
    )),
    Check("kubernetes.api", "whether the API server answers, and allocates claims", _api, (
        Row(UNKNOWN, "the API server is not asked: {unknown}", "unknown",
            advice="run this in the DaemonSet's container `plugin`, or name a file with --kubeconfig"),
        Row(FAILED, "the API server: {cause}", "cause"),
        Row(FAILED, "the API server has no resource.k8s.io/v1: it allocates no claims",
            advice="Kubernetes 1.34 or newer has it; older clusters use the device plugin (mode=device-plugin)"),
    )),
    Check("kubernetes.devices", "what is published against what the node has; taints", _devices, (
        Row(FAILED, "the API server has no ResourceSlice of {driver} for {node}", "node"),
        Row(FAILED, "{count} of {wanted} ResourceSlices are there: the scheduler takes no device", "count"),
        Row(WARNING, "{tainted} has the taint {key}={value}:{effect}", "tainted",
            advice="docs/kubernetes-operate.md, Health, says until when"),
        Row(OK, "published are {all}", "all"),
        Row(FAILED, "{name} is published as {published}, and is {here}"),
    ), LOGS),
    Check("kubernetes.features", "feature gates that slices need, as far as objects show them", _features, (
        Row(FAILED, "the API server has dropped what says that {name} can be shared",
            advice="turn on the feature gate DRAConsumableCapacity (on by default from Kubernetes 1.36)"),
    )),
    Check("kubernetes.cdi", "CDI files of prepared claims", _cdi, (
        Row(FAILED, "{path} of claim {one.namespace}/{one.name} {problem}: its containers cannot start", "problem"),
        Row(FAILED, "claim {one.namespace}/{one.name} has no CDI device {device}", "device"),
        Row(OK, "{count} claims are prepared"),
    ), ANEW),
    Check("kubernetes.claims", "what the plugin keeps of claims, and their slices", _kept, (
        Row(FAILED, "{unread.path} cannot be read: {unread.cause}", "unread",
            advice="while it is there, the plugin cannot say what is left of the devices"),
        Row(FAILED, "the slice of request {request} of claim {one.namespace}/{one.name} {problem}"),
    ), ANEW),
    Check("kubernetes.leftovers", "what is left of claims that are gone", _leftovers, (
        Row(WARNING, "files or slices are left of claims that are not prepared: {count}",
            advice="delete the DaemonSet's pod on this node: its successor removes them"),
    )),
)  # fmt: skip
