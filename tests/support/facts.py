"""Host facts made by hand, for code that only reads them: two GPUs, the second cut into MIG devices."""

from __future__ import annotations

from typing import Any

from nvc.discovery.driver.library_table import ROWS
from nvc.model.facts import (
    Binary,
    ControlNode,
    DeviceNode,
    Firmware,
    Gpu,
    HostFacts,
    Identity,
    Ipc,
    Library,
    MigDevice,
    ProcFile,
)
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.slice import Slice, SliceDevice
from nvc.plan.ops import (
    AllowDevice,
    BindDevice,
    BindDeviceDirectory,
    BindFile,
    BindHostFile,
    BindInside,
    BindProc,
    BindSocket,
    Ledger,
    LoaderEntry,
    Plan,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
)

VERSION = "580.159.04"
IDENTITY = Identity(1, 2, 3, 4)
LIBS = "/usr/lib/x86_64-linux-gnu"
CAPABILITIES = "/proc/driver/nvidia/capabilities"
UUID_0 = "GPU-5c1e0000-0000-0000-0000-00000000000a"
UUID_1 = "GPU-5c1e0000-0000-0000-0000-00000000000B"
MIG_UUID_0 = "MIG-11110000-0000-0000-0000-000000000001"
MIG_UUID_1 = "MIG-11110000-0000-0000-0000-000000000002"


def cap(minor: int) -> DeviceNode:
    """The node of one nvidia-caps minor."""
    return DeviceNode(f"/dev/nvidia-caps/nvidia-cap{minor}", 235, minor)


def mig_device(gpu_minor: int, index: int, uuid: str) -> MigDevice:
    """A MIG device whose GPU instance is one above its index."""
    base = f"{CAPABILITIES}/gpu{gpu_minor}/mig/gi{index + 1}"
    nodes = cap(100 + 10 * index), cap(101 + 10 * index)
    return MigDevice(index, uuid, index + 1, 0, f"{base}/access", f"{base}/ci0/access", *nodes)


def gpu(index: int, uuid: str, **changes: Any) -> Gpu:
    """A GPU whose minor is not its index, as after a hot unplug."""
    minor = index + 1
    bus_id = f"00000000:{0x3B + index:02x}:00.0"
    return Gpu(
        index,
        uuid,
        minor,
        bus_id,
        "NVIDIA H100 80GB HBM3",
        "Nvidia",
        "9.0",
        DeviceNode(f"/dev/nvidia{minor}", 195, minor),
        f"/proc/driver/nvidia/gpus/{bus_id[4:]}",
    ).replace(**changes)


def gpus() -> tuple[Gpu, Gpu]:
    """One whole GPU and one with two MIG devices."""
    mig = (mig_device(2, 0, MIG_UUID_0), mig_device(2, 1, MIG_UUID_1))
    second = gpu(
        1,
        UUID_1,
        mig_capable=True,
        mig_enabled=True,
        mig=mig,
        capability_major=235,
        capability_minors=(100, 101),
    )
    return gpu(0, UUID_0), second


def library(stem: str, kind: str, arch: str = "x86_64", directory: str = LIBS) -> Library:
    """A driver library by the beginning of its name."""
    counted = stem not in ROWS or ROWS[stem].counted
    link = f"{stem}.so" if stem in ("libcuda", "libnvidia-opticalflow") else ""
    return Library(f"{directory}/{stem}.so.{VERSION}", f"{stem}.so.1", kind, arch, counted, IDENTITY, link)


def facts(**changes: Any) -> HostFacts:
    """A host; `changes` replace fields."""
    return HostFacts(
        driver_root="/run/driver",
        driver_version=VERSION,
        cuda_version="13.0",
        simulated=False,
        gpus=gpus(),
        libraries=(library("libnvidia-ml", "utility"), library("libcuda", "compute")),
        libraries32=(library("libcuda", "compute", "i386", "/usr/lib/i386-linux-gnu"),),
        binaries=(Binary("/usr/bin/nvidia-smi", "utility", IDENTITY),),
        firmwares=(Firmware(f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", IDENTITY),),
        ipcs=(
            Ipc("/run/nvidia-persistenced/socket", "persistenced", "utility"),
            Ipc("/run/nvidia-fabricmanager/socket", "fabricmanager", "utility"),
            Ipc("/tmp/nvidia-mps", "mps", "compute", True),
        ),
        controls=(
            ControlNode(DeviceNode("/dev/nvidiactl", 195, 255)),
            ControlNode(DeviceNode("/dev/nvidia-uvm", 510, 0), "compute"),
            ControlNode(DeviceNode("/dev/nvidia-uvm-tools", 510, 1), "compute"),
            ControlNode(DeviceNode("/dev/nvidia-modeset", 195, 254), "display"),
        ),
        mig_config=cap(1),
        mig_monitor=cap(2),
        imex_major=236,
        proc_files=(ProcFile("params", b"ModifyDeviceFiles: 1\n"),),
    ).replace(**changes)


#: A plan with every operation.
PLAN = Plan(
    "/run/driver",
    "/",
    "/run/driver",
    "580.159.04",
    (UUID_0, UUID_1),
    (
        Tmpfs(
            "/proc/driver/nvidia",
            ("gpus/0000:3b:00.0",),
            (("params", b"ModifyDeviceFiles: 0\n"), ("raw", b"\xff")),
        ),
        BindProc("/proc/driver/nvidia/gpus/0000:3b:00.0", "/proc/driver/nvidia/gpus/0000:3b:00.0"),
        BindProc("/proc/driver/nvidia/sim/state", "/proc/driver/nvidia/sim/state", False, True),
        BindFile("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", IDENTITY),
        BindFile("/usr/lib64/libcuda.so.580.159.04", f"{LIBS}/libcuda.so.580.159.04", IDENTITY),
        BindFile("/lib/firmware/gsp.bin", "/lib/firmware/gsp.bin", IDENTITY, True),
        BindHostFile("/opt/nvc/lib/nvc/vgpu/1/libcuda.so", f"{LIBS}/libcuda.so.550.1", IDENTITY),
        BindInside("/usr/local/cuda/compat/libcuda.so.590.1", f"{LIBS}/nvc/real-libcuda.so.1", IDENTITY),
        BindHostFile("/run/nvc/vgpu/1-2-3-4/quota", f"{LIBS}/nvc/quota", None),
        Ledger(f"{LIBS}/nvc/ledger", b"NVCLEDGR", 8192),
        BindSocket("/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket"),
        BindDevice("/dev/nvidia0", "/dev/nvidia0", 195, 0),
        BindDeviceDirectory("/dev/nvidia-caps", "/dev/nvidia-caps"),
        AllowDevice(195, 0),
        Symlink("libcuda.so.580.159.04", f"{LIBS}/libcuda.so.1", f"{LIBS}/libcuda.so.580.159.04"),
        Symlink("libcuda.so.1", f"{LIBS}/libcuda.so"),
        UpdateLoaderCache((LoaderEntry("libcuda.so.1", f"{LIBS}/libcuda.so.1", "x86_64"),)),
    ),
    ("the image has musl",),
    Slice(
        (
            SliceDevice(UUID_0, "0", "NVIDIA H100 80GB HBM3", 81559 << 20, 10 << 30, 518 << 20, 0, True),
            SliceDevice(UUID_1, "1", "NVIDIA H100 80GB HBM3", 81559 << 20, NO_LIMIT),
        ),
        "/opt/nvc/lib/nvc/vgpu/1",
        (("libcuda.so.1", "/opt/nvc/lib/nvc/vgpu/1/libcuda.so", IDENTITY),),
        "/run/nvc/vgpu/1-2-3-4/quota",
        left_out=("libnvidia-opencl.so.580.159.04",),
    ),
)
