"""What pods keep while parts of nvc and of Kubernetes are killed, and that new pods start afterwards."""

from __future__ import annotations

import contextlib
import re

from support import until
from support.cluster import Cluster
from support.cluster.pods import WAIT, Space, pod, template, until_nothing_is_left
from support.cluster.processes import end, members, started

NODE = {"nodeSelector": {"kubernetes.io/hostname": "node1"}}
#: What the command line of each program of the DaemonSet has.
PROGRAMS = {"plugin": r'main\("nvc-kubelet-plugin"\)', "nvcd": r"^nvcd\b"}


def processes(cluster: Cluster, name: str) -> dict[int, int]:
    """Those of a program of the DaemonSet on node1: pid, start time."""
    found = {}
    for pid in members(cluster.state.nodes["node1"].cgroup):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as text:
            if re.search(PROGRAMS[name], text.read()):
                found[pid] = started(pid)
    return found


def a_running_pod(space: Space, name: str = "kept") -> None:
    """On node1, with 2 GiB."""
    space.apply(template("two", {"memory": "2Gi", "cores": "10"}))
    space.apply(pod(name, "exec sleep infinity", {"gpu": "two"}, **NODE))
    space.phase(name, "Running")


def works(space: Space, name: str = "kept") -> None:
    """The pod has its slice, and its limit holds."""
    assert "MiB / 2048MiB" in space.run(name, "nvidia-smi")
    assert "refused" in space.run(name, "nvc-spin -m 1GiB -s 1 && { nvc-spin -m 3GiB -s 1 || echo refused; }")


def test_a_pod_is_deleted_while_the_plugin_is_away(nvc: Cluster, space: Space) -> None:
    """Its claim is unprepared when the plugin is back."""
    a_running_pod(space)
    space.kubectl("delete", "pod", "kept", "--wait=false")
    end(processes(nvc, "plugin"))
    space.kubectl("wait", "--for=delete", "pod/kept", WAIT)
    until_nothing_is_left(nvc)


def test_the_kubelet_starts_again(nvc: Cluster, space: Space) -> None:
    a_running_pod(space)
    nvc.kill("node1-kubelet")
    nvc.start_kubelet("node1")
    space.apply(pod("new", "nvidia-smi", {"gpu": "two"}, **NODE))
    space.phase("new", "Succeeded")
    works(space)
    space.delete("kept")
    until_nothing_is_left(nvc)


def test_the_api_server_is_away(nvc: Cluster, space: Space) -> None:
    """While it is, the pod goes on; a pod that was deleted just before leaves nothing."""
    a_running_pod(space)
    space.apply(pod("gone", "exec sleep infinity", {"gpu": "two"}, **NODE))
    space.phase("gone", "Running")
    space.kubectl("delete", "pod", "gone", "--wait=false")
    nvc.kill("kube-apiserver")
    until(lambda: len(nvc.inside("node1", "ls", "/var/lib/nvc/kubernetes/claims").stdout.split()) == 1)
    nvc.start_api_server()
    works(space)
    space.delete("kept")
    until_nothing_is_left(nvc)


def test_a_container_starts_again_with_its_slice(nvc: Cluster, space: Space) -> None:
    space.apply(template("two", {"memory": "2Gi", "cores": "10"}))
    document = pod("kept", "nvidia-smi; exec sleep infinity", {"gpu": "two"}, restartPolicy="Always", **NODE)
    space.apply(document)
    space.phase("kept", "Running")

    def count() -> int:
        (status,) = space.get("pod", "kept")["status"]["containerStatuses"]
        return int(status["restartCount"]) if status["ready"] else 0

    (container,) = space.get("pod", "kept")["status"]["containerStatuses"]
    crictl = [nvc.state.program("crictl"), "--runtime-endpoint=unix:///run/containerd/containerd.sock"]
    nvc.inside("node1", *crictl, "stop", "--timeout=0", container["containerID"].removeprefix("containerd://"))
    until(lambda: count() > 0, lambda: space.said("kept"))
    works(space)
    space.delete("kept")
    until_nothing_is_left(nvc)
