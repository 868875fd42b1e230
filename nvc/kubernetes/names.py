"""Names that users write in manifests."""

from __future__ import annotations

#: The DRA driver. Attributes without a domain, such as `productName`, belong to it.
DRIVER = "gpu.nvc.dev"
#: Of opaque parameters.
API_VERSION = "gpu.nvc.dev/v1alpha1"
SLICE_PARAMETERS, GPU_PARAMETERS = "SliceParameters", "GpuParameters"
#: Resources of the device plugin; a size is added to the last.
RESOURCE_GPU, RESOURCE_MIG, RESOURCE_SLICE = "nvidia.com/gpu", "nvidia.com/mig", "nvidia.com/vgpu-"
#: Capacities of a device.
MEMORY, CORES = "memory", "cores"
#: CDI devices of claims, and of what the device plugin allocates.
CDI_GPU_CLASS, CDI_SIZE_CLASS = "gpu", "vgpu"
CDI_VENDOR, CDI_CLASS, CDI_SLICE_CLASS = "k8s.gpu.nvc.dev", "claim", "slice"
#: Paths of the API server: of events, and of a claim, by namespace and name.
EVENTS = "/api/v1/namespaces/{}/events"
CLAIM_API = "resource.k8s.io/v1"
CLAIMS = f"/apis/{CLAIM_API}/namespaces/{{}}/resourceclaims/{{}}"
