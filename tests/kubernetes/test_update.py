"""A rolling update of the DaemonSet below running pods: of nvc itself, and of its configuration."""

from __future__ import annotations

import glob
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest
from support import REPO, run, until
from support.cluster import Cluster, programs
from support.cluster.pods import DRIVER, WAIT, Space, pod, simulate, template
from support.packages import NEWER

OPT = "/opt/nvc"


@pytest.fixture(scope="module")
def newer(made: str) -> Iterator[str]:
    """The image of the same code under a higher version."""
    with tempfile.TemporaryDirectory(prefix="nvc-newer-", dir="/var/tmp") as directory:
        path = os.path.join(directory, "nvc.tar")
        script = os.path.join(REPO, "packaging/image.py")
        run(sys.executable, script, path, "--version", NEWER, env=dict(os.environ), timeout=600)
        yield path


@pytest.fixture
def running() -> Iterator[Cluster]:
    """A cluster of one node with a simulated driver."""
    with tempfile.TemporaryDirectory(prefix="nvc-cluster-", dir="/var/tmp") as directory:
        with Cluster(os.path.join(directory, "c")) as cluster:
            simulate(cluster)
            cluster.kubectl("label", "nodes", "--all", "nvidia.com/gpu.present=true")
            yield cluster


def helm(cluster: Cluster, made: str, *words: str) -> None:
    """Install or update the release, and wait until its pods are the new ones."""
    (chart,) = glob.glob(os.path.join(made, "nvc-*.tgz"))
    command = [f"{programs()}/helm", "upgrade", "--install", "nvc", chart, "--namespace", "nvc"]
    cluster.sh([*command, "--create-namespace", "--set", f"driverRoot={DRIVER}", *words])
    cluster.kubectl("-n", "nvc", "rollout", "status", "ds/nvc", WAIT)


def versions(cluster: Cluster) -> list[str]:
    """Those that the node has."""
    return sorted(set(cluster.inside("node1", "ls", OPT).stdout.split()) - {"current"})


def restart(cluster: Cluster, space: Space, name: str) -> None:
    """Have the kubelet start a pod's container again."""
    (before,) = space.get("pod", name)["status"]["containerStatuses"]
    crictl = [cluster.state.program("crictl"), "--runtime-endpoint=unix:///run/containerd/containerd.sock"]
    cluster.inside("node1", *crictl, "stop", "--timeout=0", before["containerID"].removeprefix("containerd://"))
    count = f"jsonpath={{.status.containerStatuses[0].restartCount}}={before['restartCount'] + 1}"
    space.kubectl("wait", f"pod/{name}", f"--for={count}", WAIT)
    space.kubectl("wait", f"pod/{name}", "--for=condition=Ready", WAIT)


def test_pods_outlive_an_update(made: str, newer: str, running: Cluster) -> None:
    """With their slice, also when a container starts again; the old version goes when nobody needs it."""
    for image in (os.path.join(made, "nvc.tar"), newer):
        running.load(image)
    helm(running, made)
    (first,) = versions(running)
    space = Space(running, "updated")
    space.open()
    space.apply(template("two", {"memory": "2Gi", "cores": "10"}))
    space.apply(pod("kept", "exec sleep infinity", {"gpu": "two"}, restartPolicy="Always"))
    space.kubectl("wait", "pod/kept", "--for=condition=Ready", WAIT)

    helm(running, made, "--set", f"image.tag={NEWER}")
    assert "MiB / 2048MiB" in space.run("kept", "nvidia-smi")
    assert first in versions(running), "the pod's files named it when the new version came"
    restart(running, space, "kept")
    assert "MiB / 2048MiB" in space.run("kept", "nvidia-smi")
    space.apply(pod("new", "exec sleep infinity", {"gpu": "two"}))
    space.phase("new", "Running")
    space.delete("kept", "new")

    helm(running, made, "--set", f"image.tag={NEWER},config.nvcd.on-excess=stop")
    assert [name.split("-")[0] for name in versions(running)] == [NEWER]

    def said() -> str:
        return running.kubectl("-n", "nvc", "logs", "ds/nvc", "-c", "nvcd").stdout

    # The new nvcd waits until the old one has ended, and begins then.
    until(lambda: "on-excess stop" in said(), said)
