"""A Kubernetes cluster of real programs on this machine, with simulated GPUs.

    with Cluster(directory, nodes=2) as cluster:
        cluster.load(archive)
        cluster.kubectl("apply", "-f", "-", input=manifest)

`binaries.py` builds the programs once, from the Go module proxy. A node is a mount namespace and a cgroup in the
host's network: its /etc/cdi, /run/containerd, /var/lib/kubelet and so on are directories below DIRECTORY/NODE; its
/run/nvc is a tmpfs. Everything listens on addresses added to lo: 10.96.K.1 (the API server; the service address of
`kubernetes` too, so that no proxy is needed) and 10.97.K.I (node I); K is the first free number. Pods of node I
have 32 addresses of 10.98.K.0/24. There is no kube-proxy and no DNS.

From a shell: `python -m support.cluster --help`, in tests/.
"""

from __future__ import annotations

from .binaries import programs
from .plane import Cluster

__all__ = ["Cluster", "programs"]
