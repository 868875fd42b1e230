"""Windows Subsystem for Linux: the driver is Windows', its Linux files come from a shared driver store.

There is one node for all GPUs, /dev/dxg, so nothing can be selected. Which store belongs to which adapter
only libdxcore knows; here every store that holds a CUDA driver counts, which is one unless Windows kept that
of an older driver.
"""

from __future__ import annotations

import os

from nvc.base.errors import DetectionError
from nvc.base.files import closing
from nvc.base.types import Any
from nvc.discovery.devices.gpus import bus_id
from nvc.discovery.driver.elf import read_elf
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import Binary, DeviceNode, Firmware, Gpu, Identity, Library, identity_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.discovery.nvml.wire import ProbeReply

NODE = "/dev/dxg"
LIBRARIES = "/usr/lib/wsl/lib"
STORES = "/usr/lib/wsl/drivers"

#: What CUDA and NVML need, each from the first directory that has it, and whether a slice would count its memory.
#: Everything goes through libdxcore.
_TABLE = (
    ("libdxcore.so", ("utility", "compute"), True),
    ("libnvidia-ml.so.1", ("utility",), True),
    ("libnvidia-ml_loader.so", ("utility",), True),
    ("libcuda.so.1.1", ("compute",), True),
    ("libcuda_loader.so", ("compute",), True),
    ("libnvidia-ptxjitcompiler.so.1", ("compute",), True),
    ("libnvdxgdmal.so.1", ("compute",), True),
    ("libnvidia-encode.so.1", ("video",), False),
    ("libnvcuvid.so.1", ("video",), False),
    ("libnvidia-opticalflow.so.1", ("video",), False),
    ("libnvoptix.so.1", ("graphics",), False),
)
_DATA = "nvcubins.bin"  # kernels of the CUDA driver; it looks for them beside itself
_PROGRAM = "nvidia-smi"


def wsl_files(root: HostRoot, arch: str) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """The driver stores' files by their fields of HostFacts, warnings, and the directories that were searched."""
    stores = tuple(
        f"{STORES}/{name}" for name, _ in root.entries(STORES) if root.exists(f"{STORES}/{name}/libcuda.so.1.1")
    )
    libraries: list[Library] = []
    for name, kinds, counted in _TABLE:
        for directory in (*stores, LIBRARIES):
            found = _library(root, f"{directory}/{name}", arch)
            if found is not None:
                path, soname, identity = found
                libraries += [Library(path, soname, kind, arch, counted, identity) for kind in kinds]
                break
    programs = (_file(root, f"{directory}/{_PROGRAM}") for directory in (*stores, LIBRARIES))
    data = (_file(root, f"{store}/{_DATA}") for store in stores)
    fields = {
        "libraries": tuple(libraries),
        "libraries32": (),
        "binaries": tuple(Binary(path, "utility", identity) for path, identity in filter(None, programs))[:1],
        "firmwares": tuple(Firmware(path, identity) for path, identity in filter(None, data)),
    }
    several = f"{len(stores)} driver stores below {STORES}: the first is used"
    return fields, (several,) if len(stores) > 1 else (), (STORES, LIBRARIES, *stores)


def wsl_node(devices: HostRoot) -> DeviceNode | None:
    """/dev/dxg with the number that the kernel gave it, or None where this is not WSL."""
    status = devices.character(NODE, follow=True)
    return DeviceNode(NODE, os.major(status.st_rdev), os.minor(status.st_rdev)) if status else None


def wsl_gpus(node: DeviceNode, reply: ProbeReply) -> tuple[Gpu, ...]:
    """NVML's GPUs. They have no minors and one node for all, so a minor is the index."""
    return tuple(
        Gpu(
            index=gpu.index,
            uuid=gpu.uuid,
            minor=gpu.minor if gpu.minor >= 0 else gpu.index,
            bus_id=bus_id(gpu.address),
            name=gpu.name,
            brand=gpu.brand,
            architecture=gpu.architecture,
            node=node,
            proc_dir="",
        )
        for gpu in reply.gpus
    )


def _file(root: HostRoot, path: str) -> tuple[str, Identity] | None:
    try:
        fd, status = root.open_regular(path)
    except (OSError, DetectionError):
        return None
    with closing(fd):
        return root.real_path(fd), identity_of(status)


def _library(root: HostRoot, path: str, arch: str) -> tuple[str, str, Identity] | None:
    try:
        fd, status = root.open_regular(path)
        with closing(fd):
            elf, real = read_elf(fd, path), root.real_path(fd)
    except (OSError, DetectionError):
        return None
    return (real, elf.soname or os.path.basename(real), identity_of(status)) if elf.is_for(arch) else None
