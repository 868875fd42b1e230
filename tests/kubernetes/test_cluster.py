"""The cluster itself: pods run, and nothing is left of it."""

from __future__ import annotations

import os

from support import run
from support.cluster import Cluster
from support.cluster.processes import started


def test_nothing_is_left_of_a_cluster(disk: str) -> None:
    """Neither processes nor mounts, addresses, bridges, cgroups or directories."""

    def seen() -> list[str]:
        mounts = [line.split()[1] for line in run("cat", "/proc/mounts").stdout.splitlines()]
        addresses = run("ip", "-o", "addr").stdout.splitlines()
        return [
            *(path for path in mounts if disk in path),
            *(line for line in addresses if "10.96." in line or "10.97." in line),
            *(name for name in os.listdir("/sys/class/net") if name.startswith("nvc")),
        ]

    before = seen()
    directory = os.path.join(disk, "cluster")
    with Cluster(directory) as running:
        processes = dict(running.state.processes.values())
        group = running.state.nodes["node1"].cgroup
        assert seen() != before
    assert seen() == before
    assert not os.path.exists(directory)
    assert not [pid for pid, when in processes.items() if started(pid) == when]
    assert not run("find", "/sys/fs/cgroup", "-name", group, check=False).stdout
