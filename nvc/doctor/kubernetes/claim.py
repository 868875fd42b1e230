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
    node, facts = node_of(context), context.facts
    known = {one.name: one for one in devices_of(facts, places(facts), {})}
    return allocation_of(node.claim, node.claim.get("metadata", {}).get("uid", ""), node.record.driver, known)


def _allocation(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    own, allocated = node.record, node.claim.get("status", {}).get("allocation")
    fact = Fact(node=node, own=own, there=node.claim, allocated=allocated)
    results = (allocated or {}).get("devices", {}).get("results") or ()
    ours = [one for one in results if one.get("driver") == own.driver]
    fact.elsewhere = next((one for one in ours if one.get("pool") != own.node), None)
    if allocated and fact.elsewhere is None:
        try:
            wanted = _wanted(context)
            fact.pods, fact.devices = wanted.pods, ", ".join(one.device for one in wanted.given)
        except ClaimError as error:
            fact.problem, fact.advice = error, error.hint
    yield fact


def _prepared(context: Context) -> Iterator[Fact]:
    node = node_of(context)
    try:
        wanted = _wanted(context)
    except ClaimError:
        raise Blocked("claim.allocation") from None
    found = [one.given for one in node.allocations if one.uid == wanted.uid]
    if found != [wanted.given]:
        yield Fact(node=node, other=found)


_CLAIM = "claim {node.namespace}/{node.name}"
CHECKS = (
    Check("claim.allocation", "whether the claim has devices of this node, and its parameters", _allocation, (
        Row(FAILED, f"the API server has no {_CLAIM}", lambda it: not it.there,
            advice="kubectl get resourceclaims -A lists them"),
        Row(FAILED, f"{_CLAIM} is not allocated: no node has what it asks for, or no pod names it",
            lambda it: not it.allocated, advice="kubectl describe the pod: its event says what is missing"),
        Row(FAILED, _CLAIM + " has {elsewhere[device]} of node {elsewhere[pool]}, this is {own.node}",
            "elsewhere", advice="run this on that node"),
        Row(FAILED, _CLAIM + " cannot be prepared: {problem.path}: {problem.cause}", "problem"),
        Row(FAILED, f"{_CLAIM} is reserved for no pod", lambda it: not it.pods,
            advice="the pod that names it is gone, or not scheduled"),
        Row(OK, _CLAIM + " has {devices}"),
    )),
    Check("claim.prepared", "whether the plugin has prepared it as it is allocated", _prepared, (
        Row(FAILED, f"{_CLAIM} was prepared otherwise than it is allocated now", "other",
            advice="delete the pod"),
        Row(FAILED, f"{_CLAIM} is not prepared",
            advice="kubectl describe the pod: its event FailedPrepareDynamicResources says why"),
    )),
)  # fmt: skip
