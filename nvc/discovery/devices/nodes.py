"""Device nodes: the number that the driver registered for each, compared with the node at its path."""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import DetectionError
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import ControlNode, DeviceNode

#: The registered major of GPUs and control nodes (Documentation/admin-guide/devices.txt), for kernels whose
#: /proc/devices is hidden.
NVIDIA_MAJOR = 195
#: Names of this major in /proc/devices; `nvidia-frontend` up to driver 550.
_NVIDIA_NAMES = ("nvidia-frontend", "nvidia", "nvidiactl")

CONTROL = "/dev/nvidiactl"
UVM = "/dev/nvidia-uvm"
UVM_TOOLS = "/dev/nvidia-uvm-tools"
MODESET = "/dev/nvidia-modeset"
CAPABILITIES = "/dev/nvidia-caps"
#: The nodes that belong to no GPU, in the order of `list`: path, kernel module, driver in /proc/devices ("": that
#: of GPUs), minor, and the capability that brings it into containers ("": all have it).
CONTROLS = (
    (CONTROL, "nvidia", "", 255, ""),
    (UVM, "nvidia-uvm", "nvidia-uvm", 0, "compute"),
    (UVM_TOOLS, "nvidia-uvm", "nvidia-uvm", 1, "compute"),
    (MODESET, "nvidia-modeset", "", 254, "display"),
)
MODULES = tuple(dict.fromkeys(module for _, module, *_ in CONTROLS))


def has_nvidia_major(majors: dict[str, int]) -> bool:
    """Whether the kernel's `majors` have the number of GPUs and control nodes."""
    return any(name in majors for name in _NVIDIA_NAMES)


def nvidia_major(majors: dict[str, int]) -> int:
    """The major number of GPUs and control nodes in the kernel's `majors`; NVIDIA_MAJOR if it is not there."""
    for name in _NVIDIA_NAMES:
        if name in majors:
            return majors[name]
    return NVIDIA_MAJOR


def find_node(devices: HostRoot, path: str, major: int, minor: int) -> DeviceNode | None:
    """The node at `path`, or None where there is nothing.

    Raises DetectionError when something else is there: a node of another number opens another device.
    """
    try:
        status = devices.stat(path, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DetectionError.of("stat device node", path, error, _remedy(path)) from None
    if not stat.S_ISCHR(status.st_mode):
        raise DetectionError("invalid device node", path, "not a character device", _remedy(path))
    there = os.major(status.st_rdev), os.minor(status.st_rdev)
    if there != (major, minor):
        cause = f"is {there[0]}:{there[1]}, the driver's is {major}:{minor}"
        raise DetectionError("invalid device node", path, cause, _remedy(path))
    return DeviceNode(path, major, minor)


def _remedy(path: str) -> str:
    return f"remove {path} and run nvidia-modprobe, or use --load-kmods"


def control_nodes(devices: HostRoot, majors: dict[str, int]) -> tuple[ControlNode, ...]:
    """The nodes of CONTROLS that exist.

    A node whose module is not loaded is ignored: its number belongs to no driver.
    """
    found = []
    for path, _, driver, minor, capability in CONTROLS:
        major = majors.get(driver) if driver else nvidia_major(majors)
        node = find_node(devices, path, major, minor) if major is not None else None
        if node is not None:
            found.append(ControlNode(node, capability))
    return tuple(found)


def majors_of_nodes(devices: HostRoot) -> dict[str, int]:
    """Majors by driver, read from existing nodes: the kernel's /proc/devices does not list a simulated driver's."""
    found = {}
    capabilities = [f"{CAPABILITIES}/{name}" for name, _ in devices.entries(CAPABILITIES)]
    for driver, paths in (("nvidia-uvm", [UVM]), ("nvidia-caps", capabilities[:1])):
        for path in paths:
            if status := devices.character(path):
                found[driver] = os.major(status.st_rdev)
    return found


def dri_nodes(system: HostRoot, devices: HostRoot, address: tuple[int, int, int]) -> tuple[str, ...]:
    """/dev/dri/cardN and /dev/dri/renderDN of the GPU at a PCI address, those that exist.

    Source: /sys/bus/pci/devices/<address>/drm.
    """
    domain, bus, device = address
    found = []
    for name, _ in system.entries(f"/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/drm", 64):
        for prefix in ("card", "renderD"):
            number = name.removeprefix(prefix)
            if number != name and number.isascii() and number.isdigit() and devices.exists(f"/dev/dri/{name}"):
                found.append(f"/dev/dri/{name}")
    return tuple(found)
