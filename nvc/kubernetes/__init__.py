"""GPUs and slices of them for Kubernetes: the resident process `nvc-kubelet-plugin` of a node.

It publishes the node's devices, and prepares what the scheduler has allocated to a pod. It speaks gRPC with kubelet
and HTTPS with the API server. A container's start imports none of these modules.
"""

import os

# Before gRPC is imported: its handlers would start its threads again in each child that the plugin forks, and a
# process with threads can enter no namespace.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
