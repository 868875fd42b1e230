"""How nvc's devices fare in a large cluster: a real API server and scheduler, and nodes without kubelets.

    python tests/bench/kubernetes_scale.py [--nodes 1000] [--gpus 8] [--claims 10000] [--json FILE]

As root, after `make stage`. Devices are published by the plugin's own code; each claim asks for a tenth of a GPU.
Clients of the scheduler are not throttled. Prints pods a second, sizes of objects, and requests to the API server.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [REPO, os.path.join(REPO, "tests")]

from support import until  # noqa: E402
from support.cluster import Cluster  # noqa: E402
from support.facts import facts, gpu  # noqa: E402

from nvc.kubernetes.api.access import by_kubeconfig  # noqa: E402
from nvc.kubernetes.api.client import Api  # noqa: E402
from nvc.kubernetes.api.publish import AGAIN, SLICES, Publisher  # noqa: E402
from nvc.kubernetes.claims.devices import Device, devices_of  # noqa: E402
from nvc.kubernetes.health.board import Problem  # noqa: E402

FAST = ["--kube-api-qps=5000", "--kube-api-burst=5000"]
#: What a claim asks of a GPU with 80 GiB.
CAPACITY = {"memory": "7Gi", "cores": "10"}
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
THREADS = 8


class Counted(Api):
    """Counts requests and bytes of bodies."""

    requests = 0

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        type(self).requests += 1
        return super().request(method, path, body)


def devices(number: int, gpus: int) -> tuple[Device, ...]:
    """Those of one node."""
    made = tuple(
        gpu(index, f"GPU-{number:08x}-0000-0000-0000-{index:012x}", memory=81920, name="NVIDIA H100 80GB HBM3")
        for index in range(gpus)
    )
    return devices_of(facts(gpus=made), {}, {})


def node(name: str) -> dict[str, Any]:
    """A Node that pods can be bound to."""
    room = {"cpu": "128", "memory": "2Ti", "pods": "200"}
    ready = {"type": "Ready", "status": "True", "reason": "None", "message": ""}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def claim(name: str) -> dict[str, Any]:
    exactly = {"deviceClassName": "slice.gpu.nvc.dev", "capacity": {"requests": CAPACITY}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def pod(name: str) -> dict[str, Any]:
    """Nothing runs it: it is bound to a node. It tolerates that no kubelet reports."""
    main = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [main],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


def device_class() -> dict[str, Any]:
    expression = 'device.driver == "gpu.nvc.dev"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "slice.gpu.nvc.dev"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def resident(cluster: Cluster, name: str) -> int:
    """Memory of a program of the control plane, MiB."""
    pid, _ = cluster.state.processes[name]
    with open(f"/proc/{pid}/status", encoding="ascii") as text:
        (kib,) = [int(line.split()[1]) for line in text if line.startswith("VmRSS")]
    return kib >> 10


def ignore(_: object) -> None:
    """What a Publisher says of its attempts: here it is called directly, and raises."""


def watched(cluster: Cluster, api: Counted, publishers: list[Publisher]) -> dict[str, float]:
    """What it costs that each node watches its slices, and how soon those that are removed are back."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: dict[str, float] = {"kube-apiserver before watches, MiB": resident(cluster, "kube-apiserver")}
    begin = time.monotonic()
    for publisher in publishers:
        publisher.start()
    until(lambda: all(publisher.watch.following for publisher in publishers))
    found["all nodes watch, s"] = time.monotonic() - begin
    found["kube-apiserver with a watch of each node, MiB"] = resident(cluster, "kube-apiserver")
    times, Counted.requests = [], 0
    for publisher in publishers[:20]:
        before = publisher.published
        (one,) = api.get(publisher.path)["items"]
        begin = time.monotonic()
        api.request("DELETE", f"{SLICES}/{one['metadata']['name']}")
        until(lambda one=publisher, before=before: one.published > before)  # type: ignore[misc]
        times.append(time.monotonic() - begin)
    found["a removed slice is back, s, median"] = sorted(times)[len(times) // 2]
    found["a removed slice is back, s, longest"] = max(times)
    found["requests for that"] = Counted.requests / len(times) - 2
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(Publisher.stop, publishers))
    assert len(api.get(SLICES)["items"]) == len(publishers)
    return found


def measure(cluster: Cluster, options: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    server = by_kubeconfig(cluster.kubeconfig)
    api = Counted(lambda: server, "nvc-scale")
    names = [f"gpu-node-{number:04}" for number in range(options.nodes)]
    api.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", device_class())
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda name: api.request("POST", "/api/v1/nodes", node(name)), names))
        publishers = [Publisher(api, "gpu.nvc.dev", name, ignore) for name in names]
        for number, publisher in enumerate(publishers):
            publisher.devices = devices(number, options.gpus)
        Counted.requests, begin = 0, time.monotonic()
        list(pool.map(Publisher.publish, publishers))
        found["publish all nodes, s"] = time.monotonic() - begin
        found["requests to publish, a node"] = Counted.requests / options.nodes
        one = api.get(f"{SLICES}?fieldSelector=spec.nodeName%3D{names[0]}")["items"][0]
        found["ResourceSlice, bytes of JSON"] = len(json.dumps(one, separators=(",", ":")))
        Counted.requests = 0
        list(pool.map(Publisher.publish, publishers[:100]))
        found["requests a second in the steady state, all nodes"] = (
            Counted.requests / 100 * options.nodes / AGAIN
        )
        first, *rest = publishers[0].devices or ()
        sick = first.replace(problems=(Problem("xid", "79", "Xid 79", evict=True),))
        publishers[0].devices = (sick, *rest)
        Counted.requests = 0
        publishers[0].publish()
        found["requests when the health of a GPU changes"] = Counted.requests
        publishers[0].devices = (first, *rest)
        publishers[0].publish()

        found.update(watched(cluster, api, publishers))
        if not options.claims:
            return found
        wanted = [f"claim-{number:05}" for number in range(options.claims)]
        begin = time.monotonic()
        list(pool.map(lambda name: (api.request("POST", CLAIMS, claim(name)), api.request("POST", PODS, pod(name))),
                      wanted))  # fmt: skip
        found["make claims and pods, s"] = time.monotonic() - begin

    def pending() -> int:
        """About how many: they are bound in the order of their names."""
        left = api.get(f"{PODS}?fieldSelector=spec.nodeName%3D&limit=1")["items"]
        return options.claims - int(left[0]["metadata"]["name"].rpartition("-")[2]) if left else 0

    until_done(pending)
    took = time.monotonic() - begin
    found["all pods bound, s"] = took
    found["pods a second"] = options.claims / took
    allocated = api.get(f"{CLAIMS}/{wanted[0]}")
    found["allocated ResourceClaim, bytes of JSON"] = len(json.dumps(allocated, separators=(",", ":")))
    found["GPUs in use"] = used(api)
    for name in ("kube-apiserver", "kube-scheduler", "etcd"):
        found[f"{name}, MiB"] = resident(cluster, name)
    return found


def until_done(pending: Any) -> None:
    """Wait as long as pods go on being bound."""
    before = -1
    while (now := pending()) > 0:
        if now == before:
            raise SystemExit(f"{now} pods are not bound")
        before = now
        until(functools.partial(lambda last: pending() < last, now))


def used(api: Api) -> int:
    """How many devices the claims have, none of them with more than it is; that is checked here."""
    amounts: dict[tuple[str, str], int] = {}
    token = ""
    while True:
        page = api.get(f"{CLAIMS}?limit=500" + (f"&continue={token}" if token else ""))
        for item in page["items"]:
            (result,) = item["status"]["allocation"]["devices"]["results"]
            place = result["pool"], result["device"]
            amounts[place] = amounts.get(place, 0) + int(result["consumedCapacity"]["cores"])
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert max(amounts.values()) <= 100, "a GPU was given away twice"
    return len(amounts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures nvc's devices in a large cluster.")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--claims", type=int, default=10000)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nvc-scale-", dir="/var/tmp") as directory:
        more = {"kube-scheduler": FAST, "kube-controller-manager": FAST}
        with Cluster(os.path.join(directory, "c"), nodes=0, more=more) as cluster:
            found = measure(cluster, options)
    for name, value in found.items():
        print(f"{name:50} {value:10.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(found, out)


if __name__ == "__main__":
    main()
