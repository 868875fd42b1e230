"""One claim of a pod on this node: from its allocation to what its containers get."""

from __future__ import annotations

import os

from nvc.doctor import Blocked, Check, failed, ok, unknown
from nvc.doctor.kubernetes import ANEW, files_of, node_of
from nvc.errors import InputError
from nvc.kubernetes.claim import allocation_of
from nvc.kubernetes.devices import devices_of
from nvc.kubernetes.errors import ApiError, ClaimError
from nvc.kubernetes.names import CLAIMS
from nvc.kubernetes.topology import places
from nvc.slices.model import quota
from nvc.slices.model.layout import NO_LIMIT
from nvc.slices.store import registry
from nvc.slices.store.claims import key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from nvc.doctor import Finding
    from nvc.doctor.cluster import Node
    from nvc.doctor.context import Context
    from nvc.kubernetes.claim import Allocation


def _claim(context: Context) -> tuple[Node, dict[str, Any]]:
    """The claim as the API server has it. Raises Blocked."""
    node = node_of(context)
    if not node.name:
        raise Blocked("--claim")
    try:
        return node, node.answered(CLAIMS.format(node.namespace, node.name))
    except (ApiError, InputError):
        raise Blocked("claim.allocation") from None


def _wanted(context: Context) -> Allocation:
    """What the claim is to have here. Raises Blocked."""
    node, claim = _claim(context)
    try:
        return _allocation(context, node, claim)
    except ClaimError:
        raise Blocked("claim.allocation") from None


def _allocation(context: Context, node: Node, claim: dict[str, Any]) -> Allocation:
    facts = context.facts
    known = {one.name: one for one in devices_of(facts, places(facts), {})}
    return allocation_of(claim, claim.get("metadata", {}).get("uid", ""), node.record.driver, known)


def allocation(context: Context) -> Iterator[Finding]:
    """Whether the scheduler has given the claim devices of this node, and its parameters make sense."""
    node = node_of(context)
    name = f"{node.namespace}/{node.name}"
    try:
        claim = node.answered(CLAIMS.format(node.namespace, node.name))
    except InputError:
        raise Blocked("kubernetes.api") from None
    except ApiError as error:
        if error.status == 404:
            yield failed(
                f"the API server has no claim {name}", advice="kubectl get resourceclaims -A lists them"
            )
        else:
            yield unknown(f"claim {name}: {error.cause}")
        return
    status = claim.get("status") or {}
    if not status.get("allocation"):
        yield failed(
            f"claim {name} is not allocated: no node has what it asks for, or no pod names it",
            advice="kubectl describe the pod: its event says what is missing",
        )
        return
    results = status["allocation"].get("devices", {}).get("results") or ()
    elsewhere = [
        one
        for one in results
        if one.get("driver") == node.record.driver and one.get("pool") != node.record.node
    ]
    if elsewhere:
        yield failed(
            f"claim {name} has {elsewhere[0].get('device')} of node {elsewhere[0].get('pool')}, "
            f"this is {node.record.node}",
            advice="run this on that node",
        )
        return
    try:
        found = _allocation(context, node, claim)
    except ClaimError as error:
        yield failed(f"claim {name} cannot be prepared: {error.path}: {error.cause}", advice=error.hint)
        return
    if not found.pods:
        yield failed(
            f"claim {name} is reserved for no pod", advice="the pod that names it is gone, or not scheduled"
        )
    yield ok(f"claim {name} has {', '.join(one.device for one in found.given)}")


def prepared(context: Context) -> Iterator[Finding]:
    """Whether the plugin has prepared it, as it is allocated now."""
    wanted, node = _wanted(context), node_of(context)
    found = next((one for one in node.allocations() if one.uid == wanted.uid), None)
    name = f"{wanted.namespace}/{wanted.name}"
    if found is None:
        yield failed(
            f"claim {name} is not prepared",
            advice="kubectl describe the pod: its event FailedPrepareDynamicResources says why",
        )
    elif found.given != wanted.given:
        yield failed(
            f"claim {name} was prepared otherwise than it is allocated now", advice="delete the pod"
        )


def files(context: Context) -> Iterator[Finding]:
    """Whether container runtimes find its devices."""
    node = node_of(context)
    yield from files_of(node, _prepared(context))


def _prepared(context: Context) -> Allocation:
    """Raises Blocked."""
    node, claim = _claim(context)
    for one in node.allocations():
        if one.uid == claim.get("metadata", {}).get("uid"):
            return one
    raise Blocked("claim.prepared")


def slices(context: Context) -> Iterator[Finding]:
    """Whether its slices are there, with the limits that it was allocated."""
    one = _prepared(context)
    base = registry.base_directory()
    if not node_of(context).record.shares:
        yield ok("the plugin has no right to mount: slices are made when containers start")
        return
    for place, given in enumerate(one.given):
        if given.whole:
            continue
        path = f"{base}/{key_of(f'{one.uid}-{place}')}"
        where = f"request {given.request} of claim {one.namespace}/{one.name}"
        try:
            fd = os.open(f"{path}/quota", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield failed(f"the slice of {where} is gone: {path}", advice=ANEW)
            continue
        try:
            held = {quota.uuid_bytes(device.uuid): device.memory_limit for device in quota.read(fd)}
        except quota.QuotaError as error:
            yield failed(f"the slice of {where} is broken: {error.cause}", advice=ANEW)
            continue
        finally:
            os.close(fd)
        limit = held.get(quota.uuid_bytes(given.uuid), 0)
        if limit != given.limit:
            yield failed(
                f"the slice of {where} has {_text(limit)}, it was allocated {_text(given.limit)}",
                advice=ANEW,
            )
    yield ok("the slices have what was allocated")


def _text(limit: int) -> str:
    return "all memory" if limit == NO_LIMIT else f"{limit >> 20} MiB"


CHECKS = (
    Check("claim.allocation", "whether the claim has devices of this node, and its parameters", allocation),
    Check("claim.prepared", "whether the plugin has prepared it as it is allocated", prepared),
    Check("claim.files", "its CDI files", files),
    Check("claim.slices", "its slices, and whether their limits are those of the claim", slices),
)
