"""The commands of docs/kubernetes.md, in their order, on a cluster that has nothing of nvc before and after."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from support import PATIENCE, REPO
from support.cluster import Cluster
from support.cluster.images import BUSYBOX
from support.cluster.pods import simulate

#: What the page's pods run; the image has the same shell and C library for what is looked at.
IMAGE = "docker.io/library/ubuntu:24.04"
#: What must be seen in the output of the block with these words, as a regular expression.
SEEN = {
    "get resourceslices": "gpu.nvc.dev",
    "logs first": "GPU 0: NVIDIA H100",
    "exec slice": "0MiB / 10240MiB",
    "vgpu ls": "default/slice/main",
    "doctor --kubernetes": r"^(\d+) checks: \1 ok$",
    "quota gpus": "slice.gpu.nvc.dev.deviceclass.resource.k8s.io/devices",
    "logs sized": "0MiB / 10240MiB",
}
#: Directories of a node that nvc makes or writes to.
PLACES = ("/opt/nvc", "/run/nvc", "/run/cdi", "/var/lib/nvc", "/var/lib/kubelet/plugins")


def blocks() -> list[str]:
    """What the page marks as shell."""
    with open(os.path.join(REPO, "docs/kubernetes.md"), encoding="utf-8") as file:
        return re.findall(r"^```sh\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def fresh(made: str) -> Iterator[Cluster]:
    """A cluster of one node with a simulated driver; the node has the images, as if it could pull them."""
    directory = tempfile.mkdtemp(prefix="nvc-cluster-", dir="/var/tmp")
    try:
        with Cluster(directory) as running:
            simulate(running)
            running.load(os.path.join(made, "nvc.tar"))
            ctr = running.state.program("ctr")
            running.inside("node1", ctr, "-n", "k8s.io", "images", "tag", BUSYBOX, IMAGE)
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_the_page(fresh: Cluster) -> None:
    done = set()
    for block in blocks():
        # A block waits several times.
        printed = fresh.sh(["sh", "-ec", block], cwd=REPO, timeout=3 * PATIENCE).stdout
        for words, text in SEEN.items():
            if words in block:
                assert re.search(text, printed, re.MULTILINE), f"{block}\n{printed}"
                done.add(words)
    assert done == set(SEEN)
    left = fresh.inside("node1", "find", *PLACES, "-mindepth", "1", check=False).stdout.split()
    assert not left, "uninstalling leaves nothing"
    kubelet = fresh.inside("node1", "ls", "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/device-plugins")
    assert "nvc" not in kubelet.stdout
