"""Device nodes of a plan, each with its device rule."""

from __future__ import annotations

from nvc.plan.ops import AllowDevice, BindDevice, BindDeviceDirectory, BindProc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model import DeviceNode, HostFacts
    from nvc.plan.ops import Op
    from nvc.request import Request
    from nvc.selection import Selection

CAPABILITIES_PROC = "/proc/driver/nvidia/capabilities"
CAPABILITIES_DEV = "/dev/nvidia-caps"
IMEX_DEV = "/dev/nvidia-caps-imex-channels"


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

    node(facts.control)
    if "compute" in request.capabilities:
        for device in facts.uvm:
            node(device)
    if "display" in request.capabilities:
        node(facts.modeset)
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
