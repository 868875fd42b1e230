"""How fast pods with slices start on a real cluster of one node, with nvc as docs/kubernetes.md installs it.

    python tests/bench/kubernetes_pods.py [--pods 20]

As root, after `make image chart`; the programs of the cluster are built the first time. Prints the time from
`helm install` to the first pod with a slice, and the median time from a pod's making to its first command: with a
slice, with a whole GPU by a claim, and without a claim, in turn.
"""

from __future__ import annotations

import argparse
import glob
import os
import statistics
import sys
import tempfile
import time

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [REPO, os.path.join(REPO, "tests")]

from support import until  # noqa: E402
from support.cluster import Cluster, programs  # noqa: E402
from support.cluster.pods import DRIVER, pod, simulate, template  # noqa: E402

from nvc.kubernetes.api.access import by_kubeconfig  # noqa: E402
from nvc.kubernetes.api.client import Api  # noqa: E402

PODS = "/api/v1/namespaces/default/pods"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
MADE = os.path.join(REPO, "build/kubernetes")
KINDS = {"no claim": {}, "whole GPU": {"gpu": "whole"}, "slice": {"gpu": "small"}}
#: A container's clock is the node's, to 10 ms.
SCRIPT = "cat /proc/uptime; exec sleep infinity"


def uptime() -> float:
    with open("/proc/uptime", encoding="ascii") as file:
        return float(file.read().split()[0])


def started(cluster: Cluster, api: Api, name: str, claims: dict[str, str]) -> float:
    """Seconds from the making of a pod to its first command; it is deleted again."""
    began = uptime()
    # With a grace period of 0 it would be gone from the API server before its devices are free.
    api.request("POST", PODS, pod(name, SCRIPT, claims, terminationGracePeriodSeconds=1))

    def printed() -> str:
        phase = api.get(f"{PODS}/{name}")["status"].get("phase")
        assert phase in ("Pending", "Running"), phase
        return str(cluster.kubectl("logs", name, check=False).stdout) if phase == "Running" else ""

    first = float(until(printed).split()[0])
    api.request("DELETE", f"{PODS}/{name}")
    cluster.kubectl("wait", "--for=delete", f"pod/{name}", "--timeout=60s")
    return first - began


def install(cluster: Cluster, api: Api) -> float:
    """Seconds from `helm install` to the first command of a pod with a slice."""
    cluster.load(f"{MADE}/nvc.tar")
    cluster.kubectl("label", "nodes", "--all", "nvidia.com/gpu.present=true")
    for document in (
        template("small", {"memory": "4Gi", "cores": "10"}),
        template("whole", {}, of="gpu.nvc.dev"),
    ):
        api.request("POST", TEMPLATES, document)
    (chart,) = glob.glob(f"{MADE}/nvc-*.tgz")
    words = ["install", "nvc", chart, "--namespace", "nvc", "--create-namespace", f"--set=driverRoot={DRIVER}"]
    began = uptime()
    cluster.sh([f"{programs()}/helm", *words, "--wait", "--timeout=3m"])
    installed = uptime() - began
    return installed + started(cluster, api, "first", KINDS["slice"])


def main() -> None:
    """Parse options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=20, help="of each kind")
    args = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="nvc-cluster-", dir="/var/tmp")
    with Cluster(directory) as cluster:
        measure(args, cluster)


def measure(args: argparse.Namespace, cluster: Cluster) -> None:
    """Install nvc, and start pods of all kinds in turn."""
    simulate(cluster)
    server = by_kubeconfig(cluster.kubeconfig)
    api = Api(lambda: server, "bench")
    print(f"helm install to the first pod with a slice: {install(cluster, api):.1f} s", flush=True)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(args.pods):
        for kind, claims in KINDS.items():
            time.sleep(0.5)  # what the last pod leaves to be done
            found[kind].append(started(cluster, api, f"p{number}-{kind.split()[0].lower()}", claims))
    base = statistics.median(found["no claim"])
    for kind, seconds in found.items():
        middle = statistics.median(seconds)
        print(f"{kind}: median {middle * 1000:.0f} ms ({(middle - base) * 1000:+.0f} ms), "
              f"{min(seconds) * 1000:.0f} to {max(seconds) * 1000:.0f}, of {len(seconds)} pods")  # fmt: skip


if __name__ == "__main__":
    main()
