"""Slices of GPUs by claims: what pods see, what they may take, and what the scheduler counts."""

from __future__ import annotations

import json
from typing import Any

from support import until
from support.cluster import Cluster
from support.cluster.pods import NVC, WAIT, Space, pod, template

IDLE = "exec sleep infinity"
ONE_GPU = {"selectors": [{"cel": {"expression": 'device.attributes["gpu.nvc.dev"].index == 0'}}]}


def uuids(space: Space, *names: str) -> set[str]:
    """The devices that running pods see."""
    return {space.run(name, "nvidia-smi -L").split("UUID: ")[1].strip(") \n") for name in names}


def test_a_pod_has_the_memory_of_its_claim(nvc: Cluster, space: Space) -> None:
    """nvidia-smi shows it, an allocation beyond it fails, and one below it does not."""
    space.apply(template("small", {"memory": "10Gi", "cores": "30"}))
    script = "nvidia-smi -L; nvidia-smi; nvc-spin -m 9GiB -s 1; echo below $?; "
    script += "nvc-spin -m 11GiB -s 1; echo beyond $?"
    printed = space.output(pod("slice", script, {"gpu": "small"}))
    assert "0MiB / 10240MiB" in printed and printed.count("UUID: ") == 1
    assert "below 0" in printed and "beyond 1" in printed


def test_two_pods_share_a_gpu_and_a_third_waits(nvc: Cluster, space: Space) -> None:
    """Until one of the two is gone."""
    space.apply(template("half", {"memory": "39Gi", "cores": "50"}, **ONE_GPU))
    for name in ("one", "two"):
        space.apply(pod(name, IDLE, {"gpu": "half"}, nodeSelector={"kubernetes.io/hostname": "node1"}))
        space.phase(name, "Running")
    assert len(uuids(space, "one", "two")) == 1
    space.apply(pod("three", IDLE, {"gpu": "half"}, nodeSelector={"kubernetes.io/hostname": "node1"}))
    space.kubectl("wait", "pod/three", "--for=condition=PodScheduled=false", WAIT)
    (condition,) = [each for each in space.get("pod", "three")["status"]["conditions"] if each["status"] == "False"]
    assert condition["reason"] == "Unschedulable" and "cannot allocate all claims" in condition["message"]
    space.delete("one")
    space.phase("three", "Running")
    space.delete("two", "three")


def test_a_suspended_slice_is_told(nvc: Cluster, space: Space) -> None:
    """By an event of its pod, and by a condition of its claim until that is deallocated.

    The record of a suspension is the test's: nvcd reads no others than its own.
    """

    def slices() -> dict[str, Any]:
        listed = json.loads(nvc.inside("node1", NVC, "vgpu", "ls", "--format", "json").stdout)["slices"]
        return {one["key"]: one for one in listed}

    others = slices()  # of pods that are being deleted
    made = template("small", {"memory": "2Gi", "cores": "50"})
    space.apply({**made, "kind": "ResourceClaim", "spec": made["spec"]["spec"]})
    document = pod("away", IDLE, {"gpu": "small"}, nodeSelector={"kubernetes.io/hostname": "node1"})
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "small"}]
    space.apply(document)
    space.phase("away", "Running")
    (slice,) = (one for key, one in slices().items() if key not in others)
    saved = f"saved 1 1 {slice['devices'][0]['uuid']} {3 << 20} 0"
    write = f"mkdir -p $0; printf 'state suspended\\nsince 1\\nwhy asked\\n{saved}\\n' > $0/.new; mv $0/.new $0/$1"
    for script, event, reason, status in (
        (write, "SliceSuspended", "Asked", "True"), ("rm $0/$1", "SliceResumed", "Resumed", "False"),
    ):  # fmt: skip
        nvc.inside("node1", "sh", "-ec", script, "/run/nvc/suspend", slice["key"])
        condition = "{.status.devices[0].conditions[0].reason}"
        space.kubectl("wait", "resourceclaim/small", f"--for=jsonpath={condition}={reason}", WAIT)
        space.until_event("away", event)
        found = space.get("resourceclaim", "small")
        (entry,) = found["status"]["devices"]
        (result,) = found["status"]["allocation"]["devices"]["results"]
        assert {key: entry[key] for key in ("driver", "pool", "device", "shareID")}.items() <= result.items()
        assert [one["status"] for one in entry["conditions"]] == [status]
    assert "3 MiB of GPU memory are" in space.event_messages("away")
    space.delete("away")
    until(lambda: {"allocation", "devices"}.isdisjoint(space.get("resourceclaim", "small").get("status", {})))


def test_a_plugin_writes_nothing_else_of_a_claim(nvc: Cluster, space: Space) -> None:
    """Also with every right: before Kubernetes 1.36, that to the status is one to all of it."""
    space.apply(template("small", {"memory": "1Gi"}))
    space.apply(pod("here", IDLE, {"gpu": "small"}, nodeSelector={"kubernetes.io/hostname": "node1"}))
    space.phase("here", "Running")
    (found,) = space.get("resourceclaims")["items"]
    (result,) = found["status"]["allocation"]["devices"]["results"]
    mine = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    words = ["-n", space.name, "patch", "resourceclaim", found["metadata"]["name"], "--subresource=status"]
    words += ["--type=merge", "--as=system:serviceaccount:nvc:nvc"]

    def write(node: str, status: dict[str, Any]) -> str:
        who = f"--as-user-extra=authentication.kubernetes.io/node-name={node}"
        done = nvc.kubectl(*words, who, "-p", json.dumps({"status": status}), check=False)
        return str(done.stderr)

    nvc.kubectl("create", "clusterrolebinding", "all", "--clusterrole=cluster-admin", "--serviceaccount=nvc:nvc")
    try:
        assert write("node1", {"devices": [mine]}) == ""
        assert "node 'node2' cannot write other devices of claims" in write("node2", {"devices": []})
        assert "the plugin does not allocate claims" in write("node1", {"reservedFor": []})
    finally:
        nvc.kubectl("delete", "clusterrolebinding", "all")
