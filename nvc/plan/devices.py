"""Device nodes of a plan, each with its device rule."""

from __future__ import annotations

from nvc.base.types import Any, Iterable
from nvc.model.facts import DeviceNode, Gpu, HostFacts
from nvc.model.request import Request
from nvc.model.selection import Selection
from nvc.plan.ops import AllowDevice, BindDevice, BindDeviceDirectory, BindProc, Op

CAPABILITIES_PROC = "/proc/driver/nvidia/capabilities"
CAPABILITIES_DEV = "/dev/nvidia-caps"
IMEX_DEV = "/dev/nvidia-caps-imex-channels"
DRI_LINKS = "/dev/dri/by-path"


def groups_of(nodes: Iterable[dict[str, Any]]) -> set[int]:
    """The groups of nodes that are not open to everybody; never root's."""
    return {node["gid"] for node in nodes if node.get("gid") and node["fileMode"] & 0o006 != 0o006}


def device_links(gpu: Gpu) -> tuple[tuple[str, str], ...]:
    """Links to a GPU's DRI nodes by its PCI address, as udev makes them: text and path of each."""
    domain, _, rest = gpu.bus_id.lower().partition(":")
    found = []
    for path in gpu.dri_nodes:
        name = path[path.rindex("/") + 1 :]
        kind = "card" if name.startswith("card") else "render"
        found.append((f"../{name}", f"{DRI_LINKS}/pci-{int(domain, 16):04x}:{rest}-{kind}"))
    return tuple(found)


def device_ops(facts: HostFacts, selection: Selection, request: Request) -> list[Op]:
    """Control nodes, GPUs, MIG capabilities and IMEX channels, as request and selection want them."""
    ops: list[Op] = []

    def node(device: DeviceNode | None) -> None:
        if device is None:
            return
        if request.devbind:
            ops.append(BindDevice(device.path, device.path, device.major, device.minor))
        allow(device)

    def allow(device: DeviceNode) -> None:
        if request.cgroups:
            ops.append(AllowDevice(device.major, device.minor))

    for one in facts.controls:
        if not one.capability or one.capability in request.capabilities:
            node(one.node)
    for gpu in selection.gpus:
        node(gpu.node)
    if selection.mig_config or selection.mig_monitor:
        ops.append(BindProc(CAPABILITIES_PROC, CAPABILITIES_PROC))
        if request.devbind and facts.mig_config is not None:
            ops.append(BindDeviceDirectory(CAPABILITIES_DEV, CAPABILITIES_DEV))
        if selection.mig_config and facts.mig_config is not None:
            allow(facts.mig_config)
        if selection.mig_monitor and facts.mig_monitor is not None:
            allow(facts.mig_monitor)
        for gpu in selection.gpus:
            if gpu.mig_capable:
                for device in gpu.capability_nodes:
                    allow(device)
    else:
        for _, mig in selection.mig:
            ops.append(BindProc(mig.gi_access, mig.gi_access, is_directory=False))
            ops.append(BindProc(mig.ci_access, mig.ci_access, is_directory=False))
            node(mig.gi_node)
            node(mig.ci_node)
    for channel in selection.imex_channels:
        path = f"{IMEX_DEV}/channel{channel}"
        if request.devbind:
            ops.append(BindDevice(path, path, facts.imex_major, channel))
        if request.cgroups:
            ops.append(AllowDevice(facts.imex_major, channel))
    return ops
