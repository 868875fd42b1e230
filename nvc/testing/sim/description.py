"""The description that the simulated libraries read; its format: native/simdriver/common/description.h."""

from __future__ import annotations

from nvc.testing.sim.spec import SimGpu, SimSpec, cap_minor

#: What the description has of a model and of a MIG device under the names that they have here.
_MODEL = "brand capability multiprocessors clock_mhz memory_clock_mhz memory_bus_width l2_cache shared_memory"
_MODEL_KEYS = (*_MODEL.split(), "threads", "power_limit", "reserved_memory")
_MIG_KEYS = "uuid profile gpu_instance compute_instance gpu_slices compute_slices multiprocessors memory".split()


def _gpu_lines(index: int, gpu: SimGpu) -> list[str]:
    model = gpu.model
    lines = [
        f"gpu={index}",
        *(f"{key}={getattr(gpu, key)}" for key in ("uuid", "name", "serial", "minor", "bus_id", "memory")),
        f"pci_device_id=0x{model.pci_device_id:08x}",
        f"pci_subsystem_id=0x{model.pci_subsystem_id:08x}",
        *(f"{key}={getattr(model, key)}" for key in _MODEL_KEYS),
        f"context_memory={min(model.context_memory, (gpu.memory - model.reserved_memory) // 4)}",
        f"mig_capable={int(bool(model.mig))}",
        f"mig_enabled={int(gpu.mig_enabled)}",
    ]
    for number, mig in enumerate(gpu.mig):
        lines += [
            f"mig={number}",
            *(f"mig_{key}={getattr(mig, key)}" for key in _MIG_KEYS),
            f"mig_gpu_cap_minor={cap_minor(gpu.minor, mig.gpu_instance)}",
            f"mig_compute_cap_minor={cap_minor(gpu.minor, mig.gpu_instance, mig.compute_instance)}",
        ]
    return lines


def render(spec: SimSpec, gpus: tuple[SimGpu, ...], uvm_major: int, caps_major: int) -> bytes:
    """The text of the description."""
    lines = [
        "format=1",
        f"driver_version={spec.driver_version}",
        f"cuda_version={spec.cuda_version}",
        f"uvm_major={uvm_major}",
        f"caps_major={caps_major}",
    ]
    for index, gpu in enumerate(gpus):
        lines += _gpu_lines(index, gpu)
    return ("\n".join(lines) + "\n").encode()


def parse(text: bytes) -> tuple[dict[str, str], list[tuple[dict[str, str], list[dict[str, str]]]]]:
    """What `render` wrote, as (driver keys, [(GPU keys, [MIG device keys])]); for showing only."""
    driver: dict[str, str] = {}
    gpus: list[tuple[dict[str, str], list[dict[str, str]]]] = []
    section = driver
    for line in text.decode("ascii", "replace").splitlines():
        key, _, value = line.partition("=")
        if key == "gpu":
            section = {}
            gpus.append((section, []))
        elif key == "mig" and gpus:
            section = {}
            gpus[-1][1].append(section)
        section[key] = value
    return driver, gpus
