"""nvc: NVIDIA GPUs, or slices of them, for containers.

    with nvc.Driver.configured() as driver, nvc.Container(pid, rootfs) as container:
        driver.configure(container, nvc.Request(devices=("all",), capabilities=("utility", "compute")))

Names below are loaded when they are used: a container start imports this package too, and needs none of them.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.api import Container, Driver, list_slices
    from nvc.apply.executor import Outcome
    from nvc.base.errors import (
        ContainerError,
        DetectionError,
        DeviceError,
        InitializationError,
        InputError,
        InternalError,
        LoaderCacheError,
        MigConfigError,
        MigMonitorError,
        MountError,
        NvcError,
        PermissionDenied,
        RequirementError,
    )
    from nvc.model.facts import Binary, ControlNode, DeviceNode, Gpu, HostFacts, Library, MigDevice
    from nvc.model.request import DriverOptions, Request, Size, SliceRequest
    from nvc.model.selection import Selection
    from nvc.model.slices.sizes import parse_size
    from nvc.plan.ops import Plan
    from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

_HOMES = {
    "nvc.api": "Driver Container list_slices",
    "nvc.model.request": "DriverOptions Request SliceRequest Size",
    "nvc.model.slices.sizes": "parse_size",
    "nvc.model.facts": "HostFacts Gpu MigDevice DeviceNode ControlNode Library Binary",
    "nvc.model.selection": "Selection",
    "nvc.plan.ops": "Plan",
    "nvc.apply.executor": "Outcome",
    "nvc.slices.store.status": "SliceStatus SliceDeviceStatus",
    "nvc.base.errors": "NvcError InputError PermissionDenied InitializationError ContainerError DetectionError "
    "DeviceError MigConfigError MigMonitorError RequirementError MountError LoaderCacheError InternalError",
}

__all__ = [
    "Binary", "Container", "ContainerError", "ControlNode", "DetectionError", "DeviceError", "DeviceNode", "Driver",
    "DriverOptions", "Gpu", "HostFacts", "InitializationError", "InputError", "InternalError", "Library",
    "LoaderCacheError", "MigConfigError", "MigDevice", "MigMonitorError", "MountError", "NvcError",
    "Outcome", "PermissionDenied", "Plan", "Request", "RequirementError", "Selection", "Size",
    "SliceRequest", "SliceStatus", "SliceDeviceStatus", "parse_size", "list_slices",
]  # fmt: skip


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names.split():
            import importlib

            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'nvc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
