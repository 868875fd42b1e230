"""Containers of a pod, and pods, that share: one slice for a request, however many containers name it."""

from __future__ import annotations

from support.cluster import Cluster
from support.cluster.pods import Space, pod, template, until_nothing_is_left

IDLE = "exec sleep infinity"
#: Until the other container has what it wants.
TAKEN = "until nvidia-smi | grep -q '4[0-9][0-9][0-9]MiB / 6144MiB'; do :; done"


def test_containers_with_one_request_share_its_slice(nvc: Cluster, space: Space) -> None:
    """What one of them takes the other cannot have; an init container has it too, before both."""
    space.apply(template("shared", {"memory": "6Gi", "cores": "10"}))
    document = pod("both", "nvc-spin -m 4GiB", {"gpu": "shared"})
    (first,) = document["spec"]["containers"]
    document["spec"]["containers"].append({**first, "name": "other", "command": ["sh", "-c", IDLE]})
    document["spec"]["initContainers"] = [{**first, "name": "before", "command": ["sh", "-c", "nvidia-smi"]}]
    space.apply(document)
    space.phase("both", "Running")
    assert "6144MiB" in space.kubectl("logs", "both", "-c", "before")
    script = f"{TAKEN}; nvc-spin -m 3GiB -s 1 || echo refused"
    assert "refused" in space.kubectl("exec", "both", "-c", "other", "--", "sh", "-c", script)
    space.delete("both")
    until_nothing_is_left(nvc)


def test_containers_with_a_request_each_have_a_slice_each(nvc: Cluster, space: Space) -> None:
    """The two add up to what the claim was given."""
    document = template("each", {"memory": "6Gi", "cores": "10"})
    requests = document["spec"]["spec"]["devices"]["requests"]
    small = {"deviceClassName": "slice.gpu.nvc.dev", "capacity": {"requests": {"memory": "2Gi", "cores": "10"}}}
    requests.append({"name": "other", "exactly": small})
    space.apply(document)
    two = pod("two", IDLE, {"gpu": "each"})
    (first,) = two["spec"]["containers"]
    two["spec"]["containers"] = [
        {**first, "name": name, "resources": {"claims": [{"name": "gpu", "request": request}]}}
        for name, request in (("main", "gpu"), ("second", "other"))
    ]
    space.apply(two)
    space.phase("two", "Running")
    assert "/ 6144MiB" in space.kubectl("exec", "two", "-c", "main", "--", "nvidia-smi")
    assert "/ 2048MiB" in space.kubectl("exec", "two", "-c", "second", "--", "nvidia-smi")
    space.delete("two")
    until_nothing_is_left(nvc)


def test_two_pods_with_one_claim_share_its_slice(nvc: Cluster, space: Space) -> None:
    """A claim that is not made by a template can be named by several pods."""
    made = template("one", {"memory": "6Gi", "cores": "10"})
    space.apply({**made, "kind": "ResourceClaim", "spec": made["spec"]["spec"]})
    for name, script in (("a", "nvc-spin -m 4GiB"), ("b", IDLE)):
        document = pod(name, script, {"gpu": "one"})
        document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "one"}]
        space.apply(document)
        space.phase(name, "Running")
    script = f"{TAKEN}; nvc-spin -m 3GiB -s 1 || echo refused"
    assert "refused" in space.kubectl("exec", "b", "--", "sh", "-c", script)
    space.delete("a", "b")
    until_nothing_is_left(nvc)
