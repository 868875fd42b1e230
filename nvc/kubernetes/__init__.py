"""GPUs and slices of them for Kubernetes: the resident process `nvc-kubelet-plugin` of a node.

It publishes the node's devices, and prepares what the scheduler has allocated to a pod. It speaks gRPC with kubelet
and HTTPS with the API server. A container's start imports none of these modules.
"""
