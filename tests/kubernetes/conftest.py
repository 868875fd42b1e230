"""One cluster for all tests, with nvc as docs/kubernetes.md installs it, and one without anything for charts."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from support import REPO, until
from support.builds import make
from support.cluster import Cluster, programs
from support.cluster.pods import DRIVER, WAIT, Space, simulate
from support.kubelet import api, kubelet, plugin  # noqa: F401
from support.vgpushim import tool  # noqa: F401

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
#: What `make image` and `make chart` make.
MADE = os.path.join(REPO, "build/kubernetes")


@pytest.fixture(scope="session")
def made(stage: str) -> str:
    """The directory with nvc.tar, nvc-VERSION.tgz and nvc.yaml."""
    make("image")
    make("chart", f"HELM={programs()}/helm")
    return MADE


@pytest.fixture(scope="session")
def nvc(made: str, cluster: Cluster) -> Cluster:
    """The cluster with nvc installed; each node has two simulated GPUs."""
    simulate(cluster)
    cluster.kubectl("label", "nodes", "--all", "nvidia.com/gpu.present=true")
    cluster.load(os.path.join(made, "nvc.tar"))
    (chart,) = glob.glob(os.path.join(made, "nvc-*.tgz"))
    words = ["install", "nvc", chart, "--namespace", "nvc", "--create-namespace"]
    cluster.sh([f"{programs()}/helm", *words, "--set", f"driverRoot={DRIVER}", "--wait", WAIT])
    until(lambda: len(cluster.get(SLICES)["items"]) == len(cluster.state.nodes))
    return cluster


@pytest.fixture
def space(nvc: Cluster, request: pytest.FixtureRequest) -> Iterator[Space]:
    """A namespace of the test's own."""
    digest = hashlib.blake2b(request.node.nodeid.encode(), digest_size=4).hexdigest()
    made = Space(nvc, f"test-{digest}")
    made.open()
    yield made
    made.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster of two nodes, in a directory on a disk."""
    directory = tempfile.mkdtemp(prefix="nvc-cluster-", dir="/var/tmp")
    try:
        with Cluster(directory, nodes=2) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)
