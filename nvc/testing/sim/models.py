"""The GPU models that can be simulated: numbers from data sheets and from `nvidia-smi` on such boards."""

from __future__ import annotations

from nvc.base.value import Value

MIB = 1 << 20


class MigProfile(Value):
    """A shape of MIG device. Slices of memory are eighths of the board."""

    name: str  # "1g.10gb"
    compute_slices: int
    memory_slices: int
    multiprocessors: int


class Model(Value):
    """A board. Memory is in bytes, clocks in MHz, power in milliwatts."""

    name: str
    brand: int  # nvmlBrandType_t
    capability: str
    pci_device_id: int  # device << 16 | vendor
    pci_subsystem_id: int
    memory: int  # what NVML calls total
    reserved_memory: int  # of it, never given to programs
    context_memory: int  # of a CUDA context; measured on the H100, estimated for the others
    multiprocessors: int
    clock_mhz: int
    memory_clock_mhz: int
    memory_bus_width: int  # bits
    l2_cache: int  # bytes
    shared_memory: int  # bytes per multiprocessor
    threads: int  # resident per multiprocessor
    power_limit: int
    mig: tuple[MigProfile, ...] = ()


def _profiles(sizes: tuple[int, int, int, int], multiprocessors: tuple[int, ...]) -> tuple[MigProfile, ...]:
    """The usual profiles of a board whose eighth, quarter, half and whole have `sizes` GB."""
    shapes = ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8))
    gigabytes = {1: sizes[0], 2: sizes[1], 4: sizes[2], 8: sizes[3]}
    return tuple(
        MigProfile(f"{compute}g.{gigabytes[memory]}gb", compute, memory, count)
        for (compute, memory), count in zip(shapes, multiprocessors)
    )


_H = (16, 26, 32, 60, 64, 132)  # multiprocessors of the profiles of a Hopper
MODELS = {
    "h100": Model("NVIDIA H100 80GB HBM3", 14, "9.0", 0x233010DE, 0x16C110DE, 81559 * MIB, 551 * MIB, 518 * MIB,
                  132, 1980, 2619, 5120, 50 * MIB, 228 << 10, 2048, 700000, _profiles((10, 20, 40, 80), _H)),
    "h200": Model("NVIDIA H200", 14, "9.0", 0x233510DE, 0x18BE10DE, 143771 * MIB, 604 * MIB, 518 * MIB, 132,
                  1980, 3201, 6144, 60 * MIB, 228 << 10, 2048, 700000, _profiles((18, 35, 71, 141), _H)),
    "a100": Model("NVIDIA A100-SXM4-80GB", 14, "8.0", 0x20B210DE, 0x146310DE, 81920 * MIB, 617 * MIB, 412 * MIB,
                  108, 1410, 1593, 5120, 40 * MIB, 164 << 10, 2048, 400000,
                  _profiles((10, 20, 40, 80), (14, 14, 28, 42, 56, 98))),
    "l40s": Model("NVIDIA L40S", 14, "8.9", 0x26B910DE, 0x185110DE, 46068 * MIB, 597 * MIB, 438 * MIB, 142,
                  2520, 9001, 384, 96 * MIB, 100 << 10, 1536, 350000),
    "t4": Model("Tesla T4", 2, "7.5", 0x1EB810DE, 0x12A210DE, 15360 * MIB, 266 * MIB, 100 * MIB, 40,
                1590, 5001, 256, 4 * MIB, 64 << 10, 1024, 70000),
}  # fmt: skip
