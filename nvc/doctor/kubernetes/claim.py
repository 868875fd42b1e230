"""One claim of a pod on this node: from its allocation to what its containers get."""

from __future__ import annotations

from collections.abc import Iterator

from nvc.doctor import FAILED, OK, Blocked, Check, Fact, Row
from nvc.doctor.context import Context
from nvc.doctor.kubernetes.cluster import node_of
from nvc.kubernetes.claims.claim import Allocation, allocation_of
from nvc.kubernetes.claims.devices import devices_of
from nvc.kubernetes.claims.topology import places
from nvc.kubernetes.errors import ClaimError


def _wanted(context: Context) -> Allocation:
    """What the claim is to have here. Raises Blocked, ClaimError."""
    node = node_of(context)
    claim, facts = node.claim(node.namespace, node.name), context.facts
    known = {one.name: one for one in devices_of(facts, places(facts), {})}
    return allocation_of(claim, claim.get("metadata", {}).get("uid", ""), node.record.driver, known)


def _allocation(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    claim = node.claim(node.namespace, node.name)
    allocated = claim.get("status", {}).get("allocation")
    fact = Fact(claim=f"{node.namespace}/{node.name}", there=claim, allocated=allocated, here=node.record.node)
    results = (allocated or {}).get("devices", {}).get("results") or ()
    for one in results:
        if one.get("driver") == node.record.driver and one.get("pool") != node.record.node:
            fact.device, fact.node = one.get("device"), one.get("pool")
    if allocated and not fact.node:
        try:
            found = _wanted(context)
            fact.devices, fact.pods = ", ".join(given.device for given in found.given), found.pods
        except ClaimError as error:
            fact.problem, fact.hint = f"{error.path}: {error.cause}", error.hint
    yield fact


def _prepared(context: Context) -> Iterator[Fact]:
    try:
        wanted = _wanted(context)
    except ClaimError:
        raise Blocked("claim.allocation") from None
    found = [one for one in node_of(context).allocations if one.uid == wanted.uid]
    yield Fact(claim=f"{wanted.namespace}/{wanted.name}", there=found,
               same=found and found[0].given == wanted.given)  # fmt: skip


CHECKS = (
    Check("claim.allocation", "whether the claim has devices of this node, and its parameters", _allocation, (
        Row(FAILED, "the API server has no claim {claim}", lambda it: not it.there,
            advice="kubectl get resourceclaims -A lists them"),
        Row(FAILED, "claim {claim} is not allocated: no node has what it asks for, or no pod names it",
            lambda it: not it.allocated, advice="kubectl describe the pod: its event says what is missing"),
        Row(FAILED, "claim {claim} has {device} of node {node}, this is {here}", "node",
            advice="run this on that node"),
        Row(FAILED, "claim {claim} cannot be prepared: {problem}", "problem", advice="{hint}"),
        Row(FAILED, "claim {claim} is reserved for no pod", lambda it: not it.pods,
            advice="the pod that names it is gone, or not scheduled"),
        Row(OK, "claim {claim} has {devices}"),
    )),
    Check("claim.prepared", "whether the plugin has prepared it as it is allocated", _prepared, (
        Row(FAILED, "claim {claim} is not prepared", lambda it: not it.there,
            advice="kubectl describe the pod: its event FailedPrepareDynamicResources says why"),
        Row(FAILED, "claim {claim} was prepared otherwise than it is allocated now", lambda it: not it.same,
            advice="delete the pod"),
    )),
)  # fmt: skip
