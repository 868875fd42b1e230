"""Which ids of resources containers have, as kubelet tells."""

from __future__ import annotations

import grpc

from nvc.kubernetes.errors import ClaimError
from nvc.kubernetes.plugin.rpc import call
from nvc.kubernetes.protocol import podresources_pb2
from nvc.kubernetes.protocol.podresources_pb2 import ListPodResourcesResponse

METHOD = "/v1.PodResourcesLister/List"
TIMEOUT = 5.0  # seconds


def listed(path: str) -> ListPodResourcesResponse:
    """The pods that have devices. Raises ClaimError where kubelet does not say."""
    request, reply = podresources_pb2.ListPodResourcesRequest(), podresources_pb2.ListPodResourcesResponse
    try:
        found: ListPodResourcesResponse = call(path, METHOD, request, reply, TIMEOUT)
    except grpc.RpcError as error:
        detail = error.details() if isinstance(error, grpc.Call) else error
        hint = "mount its directory, as the chart does"
        raise ClaimError("ask kubelet who has devices", path, detail, hint) from None
    return found


def used_ids(found: ListPodResourcesResponse) -> dict[str, set[str]]:
    """The ids that containers have, by resource."""
    used: dict[str, set[str]] = {}
    for pod in found.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                used.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return used
