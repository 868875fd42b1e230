"""The description that the simulated libraries read; its format: native/simdriver/common/description.h."""

from __future__ import annotations

from nvc.testing.sim.spec import SimGpu, SimSpec, cap_minor


def _gpu_lines(index: int, gpu: SimGpu) -> list[str]:
    model = gpu.model
    lines = [
        f"gpu={index}",
        f"uuid={gpu.uuid}",
        f"name={gpu.name}",
        f"serial={gpu.serial}",
        f"minor={gpu.minor}",
        f"bus_id={gpu.bus_id}",
        f"pci_device_id=0x{model.pci_device_id:08x}",
        f"pci_subsystem_id=0x{model.pci_subsystem_id:08x}",
        f"brand={model.brand}",
        f"capability={model.capability}",
        f"multiprocessors={model.multiprocessors}",
        f"clock_mhz={model.clock_mhz}",
        f"memory_clock_mhz={model.memory_clock_mhz}",
        f"memory_bus_width={model.memory_bus_width}",
        f"l2_cache={model.l2_cache}",
        f"shared_memory={model.shared_memory}",
        f"threads={model.threads}",
        f"power_limit={model.power_limit}",
        f"memory={gpu.memory}",
        f"reserved_memory={model.reserved_memory}",
        f"context_memory={min(model.context_memory, (gpu.memory - model.reserved_memory) // 4)}",
        f"mig_capable={int(bool(model.mig))}",
        f"mig_enabled={int(gpu.mig_enabled)}",
    ]
    for number, mig in enumerate(gpu.mig):
        lines += [
            f"mig={number}",
            f"mig_uuid={mig.uuid}",
            f"mig_profile={mig.profile}",
            f"mig_gpu_instance={mig.gpu_instance}",
            f"mig_compute_instance={mig.compute_instance}",
            f"mig_gpu_cap_minor={cap_minor(gpu.minor, mig.gpu_instance)}",
            f"mig_compute_cap_minor={cap_minor(gpu.minor, mig.gpu_instance, mig.compute_instance)}",
            f"mig_gpu_slices={mig.gpu_slices}",
            f"mig_compute_slices={mig.compute_slices}",
            f"mig_multiprocessors={mig.multiprocessors}",
            f"mig_memory={mig.memory}",
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
