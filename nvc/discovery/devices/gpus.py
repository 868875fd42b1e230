"""GPUs and MIG devices: what NVML lists, held against what the kernel driver shows."""

from __future__ import annotations

from nvc.base.errors import DetectionError
from nvc.discovery.devices.mig import MigCapabilities
from nvc.discovery.devices.nodes import dri_nodes, find_node, nvidia_major
from nvc.discovery.devices.proc import RELOAD, ProcGpu
from nvc.discovery.host import Host
from nvc.model.facts import DeviceNode, Gpu, MigDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.discovery.nvml.wire import ProbeGpu, ProbeReply


def find_gpus(
    host: Host,
    reply: ProbeReply,
    majors: dict[str, int],
    capabilities: MigCapabilities,
    known: tuple[ProcGpu, ...] | None,
) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """NVML's GPUs with their nodes and capabilities, and warnings. `known` are the kernel driver's.

    Raises DetectionError when the kernel driver knows nothing of a GPU, or knows it by another minor.
    """
    by_address = {gpu.address: gpu for gpu in known or ()}
    warnings: list[str] = []
    found = []
    for gpu in reply.gpus:
        entry = by_address.pop(gpu.address, None)
        if entry is None and known is not None:
            cause = "NVML lists it, /proc/driver/nvidia/gpus does not"
            raise DetectionError("compare GPUs", bus_id(gpu.address), cause, RELOAD)
        minor = _minor(gpu, entry)
        path, major = f"/dev/nvidia{minor}", nvidia_major(majors)
        node = find_node(host.devices, path, major, minor)
        if node is None:
            warnings.append(f"device node {path} is missing: run nvidia-modprobe -c {minor}, or use --load-kmods")
            node = DeviceNode(path, major, minor)
        found.append(_gpu(host, gpu, entry, minor, node, capabilities, warnings))
    for entry in by_address.values():
        if not entry.excluded:
            if entry.minor >= 0:
                # NVML hides a GPU whose node is another device's: that is no missing GPU, it is a wrong node.
                find_node(host.devices, f"/dev/nvidia{entry.minor}", nvidia_major(majors), entry.minor)
            name = entry.directory.rpartition("/")[2]
            warnings.append(f"GPU {name} is claimed by the driver but not in NVML")
    return tuple(found), tuple(warnings)


def bus_id(address: tuple[int, int, int]) -> str:
    """A PCI address (domain, bus, device) in NVML's spelling, such as `00000000:3b:00.0`."""
    domain, bus, device = address
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def _minor(gpu: ProbeGpu, entry: ProcGpu | None) -> int:
    told = entry.minor if entry is not None else -1
    if gpu.minor >= 0 and told >= 0 and gpu.minor != told:
        cause = f"minor {gpu.minor} in NVML, {told} in /proc/driver/nvidia/gpus"
        raise DetectionError("compare GPUs", bus_id(gpu.address), cause, RELOAD)
    minor = told if told >= 0 else gpu.minor
    if minor < 0:
        cause = "neither NVML nor the kernel module reports its minor"
        raise DetectionError("compare GPUs", bus_id(gpu.address), cause, RELOAD)
    return minor


def _gpu(
    host: Host,
    gpu: ProbeGpu,
    entry: ProcGpu | None,
    minor: int,
    node: DeviceNode,
    capabilities: MigCapabilities,
    warnings: list[str],
) -> Gpu:
    mig = []
    for device in gpu.mig:
        gi, ci = device.gpu_instance, device.compute_instance
        places = capabilities.access(minor, gi, ci)
        if not host.system.exists(places[1]):
            warnings.append(f"MIG device {gpu.index}:{device.index} is left out: {places[1]} is missing")
            continue
        mig.append(MigDevice(device.index, device.uuid, gi, ci, *places, device.memory))
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        minor=minor,
        bus_id=bus_id(gpu.address),
        name=gpu.name,
        brand=gpu.brand,
        architecture=gpu.architecture,
        node=node,
        proc_dir=entry.directory if entry is not None else "",
        mig_capable=gpu.mig_capable,
        mig_enabled=gpu.mig_enabled,
        mig=tuple(mig),
        capability_major=capabilities.major,
        capability_minors=capabilities.of_gpu(minor) if gpu.mig_capable else (),
        dri_nodes=dri_nodes(host.system, host.devices, gpu.address),
        memory=gpu.memory,
    )
