"""Slices of claims on a node with CRI-O: the same image, chart and programs as on one with containerd."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator

import pytest
from support import until
from support.cluster import Cluster, programs
from support.cluster.pods import DRIVER, WAIT, Space, pod, simulate, template, until_nothing_is_left

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
IDLE = "exec sleep infinity"


@pytest.fixture(scope="module")
def crio(made: str) -> Iterator[Cluster]:
    """A cluster of one node that runs CRI-O, with nvc as docs/kubernetes.md installs it there."""
    with tempfile.TemporaryDirectory(prefix="nvc-cluster-", dir="/var/tmp") as directory:
        with Cluster(os.path.join(directory, "c"), runtime="crio") as cluster:
            simulate(cluster)
            cluster.kubectl("label", "nodes", "--all", "nvidia.com/gpu.present=true")
            cluster.load(os.path.join(made, "nvc.tar"))
            (chart,) = glob.glob(os.path.join(made, "nvc-*.tgz"))
            words = ["install", "nvc", chart, "--namespace", "nvc", "--create-namespace", "--wait", WAIT]
            # A critical pod has a lower oom_score_adj, and a privileged one all capabilities. Where the machine
            # lacks CAP_SYS_RESOURCE, containerd gives less and CRI-O fails.
            values = [f"driverRoot={DRIVER}", "runtimeDir=/var/lib/containers/storage"]
            values += ["priorityClassName=", "privileged=false"]
            cluster.sh([f"{programs()}/helm", *words, *(f"--set={value}" for value in values)])
            until(lambda: cluster.get(SLICES)["items"])
            yield cluster


@pytest.fixture
def at_crio(crio: Cluster) -> Iterator[Space]:
    """A namespace of it."""
    made = Space(crio, "crio")
    made.open()
    yield made
    made.close()


def test_slices_with_crio(crio: Cluster, at_crio: Space) -> None:
    """Memory is limited, names are those of the pod, and nothing is left."""
    (node,) = crio.get("/api/v1/nodes")["items"]
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("cri-o://1.36.")
    at_crio.apply(template("small", {"memory": "2Gi", "cores": "30"}))
    script = "nvidia-smi; nvc-spin -m 1GiB -s 1; echo below $?; nvc-spin -m 3GiB -s 1; echo beyond $?"
    printed = at_crio.output(pod("ended", script, {"gpu": "small"}))
    assert "0MiB / 2048MiB" in printed and "below 0" in printed and "beyond 1" in printed
    at_crio.apply(pod("running", "nvidia-smi -L; " + IDLE, {"gpu": "small"}))
    at_crio.phase("running", "Running")
    listed = crio.inside("node1", "/opt/nvc/current/bin/nvc-cli", "vgpu", "ls").stdout
    assert "crio/running" in listed, listed
    at_crio.delete("running", "ended")
    until_nothing_is_left(crio)
