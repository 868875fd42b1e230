"""The files that the kernel driver shows below /proc and /sys."""

from __future__ import annotations

import functools
import os

from nvc.discovery.devices.nodes import MODULES
from nvc.testing.sim.spec import MAX_GPUS, SimGpu, SimSpec, cap_minor

#: /proc/driver/nvidia/params on a default installation.
_PARAMS = """\
ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
InitializeSystemMemoryAllocations: 1
UsePageAttributeTable: 4294967295
EnableMSI: 1
EnablePCIeGen3: 0
MemoryPoolSize: 0
EnableStreamMemOPs: 0
EnableUserNUMAManagement: 1
EnableGpuFirmware: 18
EnableResizableBar: 0
DynamicPowerManagement: 3
ImexChannelCount: 2048
CreateImexChannel0: 0
RegistryDwords: ""
"""


def _version(spec: SimSpec) -> str:
    return (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {os.uname().machine}  "
        f"{spec.driver_version}  Release Build  (simulated)\n"
        "GCC version:  none, no kernel module is loaded\n"
    )


def _information(spec: SimSpec, gpu: SimGpu) -> str:
    rows = (
        ("Model", gpu.name),
        ("IRQ", "0"),
        ("GPU UUID", gpu.uuid),
        ("Video BIOS", "00.00.00.00.00"),
        ("Bus Type", "PCIe"),
        ("DMA Size", "52 bits"),
        ("DMA Mask", "0xfffffffffffff"),
        ("Bus Location", gpu.bus_id),
        ("Device Minor", str(gpu.minor)),
        ("GPU Firmware", spec.driver_version),
        ("GPU Excluded", "No"),
    )
    return "".join(f"{name + ':':<16} {value}\n" for name, value in rows)


def capability(minor: int, mode: int) -> str:
    """A file of the capability tree. The driver prints the mode in decimal."""
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def _capabilities(gpus: tuple[SimGpu, ...]) -> dict[str, str]:
    tree = {"mig/config": capability(1, 0o400), "mig/monitor": capability(2, 0o444)}
    for gpu in gpus:
        for mig in gpu.mig:
            base = f"gpu{gpu.minor}/mig/gi{mig.gpu_instance}"
            tree[f"{base}/access"] = capability(cap_minor(gpu.minor, mig.gpu_instance), 0o444)
            tree[f"{base}/ci{mig.compute_instance}/access"] = capability(
                cap_minor(gpu.minor, mig.gpu_instance, mig.compute_instance), 0o444
            )
    return tree


@functools.cache
def _mig_minors() -> str:
    """All that could exist, as the driver lists it."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(MAX_GPUS):
        for instance in range(15):
            lines.append(f"gpu{gpu}/gi{instance}/access {cap_minor(gpu, instance)}")
            lines += [f"gpu{gpu}/gi{instance}/ci{c}/access {cap_minor(gpu, instance, c)}" for c in range(8)]
    return "\n".join(lines) + "\n"


def _devices(majors: dict[str, int]) -> str:
    characters = [(1, "mem"), (5, "/dev/tty"), (5, "/dev/console"), (10, "misc"), (136, "pts")]
    characters += [(195, "nvidia"), (195, "nvidia-modeset"), (195, "nvidiactl")]
    characters += [(major, name) for name, major in majors.items()]
    lines = [f"{major:3d} {name}" for major, name in sorted(characters, key=lambda entry: entry[0])]
    return "Character devices:\n" + "\n".join(lines) + "\n\nBlock devices:\n259 blkext\n"


def files(spec: SimSpec, gpus: tuple[SimGpu, ...], majors: dict[str, int]) -> dict[str, str]:
    """Contents by path inside the root, without the simulation's own."""
    nvidia = "proc/driver/nvidia"
    tree = {
        "proc/devices": _devices(majors),
        f"{nvidia}/version": _version(spec),
        f"{nvidia}/params": _PARAMS,
        f"{nvidia}/registry": 'Binary: ""\n',
        "sys/module/nvidia/version": f"{spec.driver_version}\n",
        **{f"sys/module/{module.replace('-', '_')}/initstate": "live\n" for module in MODULES},
        f"{nvidia}/capabilities/fabric-imex-mgmt": capability(0, 0o400),
    }
    for gpu in gpus:
        tree[f"{nvidia}/gpus/{gpu.bus_id}/information"] = _information(spec, gpu)
        tree[f"{nvidia}/gpus/{gpu.bus_id}/registry"] = 'Binary: ""\n'
    if any(gpu.model.mig for gpu in gpus):
        tree["proc/driver/nvidia-caps/mig-minors"] = _mig_minors()
        for name, content in _capabilities(gpus).items():
            tree[f"{nvidia}/capabilities/{name}"] = content
    return tree
