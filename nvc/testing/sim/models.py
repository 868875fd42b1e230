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


H100 = Model(
    name="NVIDIA H100 80GB HBM3",
    brand=14,
    capability="9.0",
    pci_device_id=0x233010DE,
    pci_subsystem_id=0x16C110DE,
    memory=81559 * MIB,
    reserved_memory=551 * MIB,
    context_memory=518 * MIB,
    multiprocessors=132,
    clock_mhz=1980,
    memory_clock_mhz=2619,
    memory_bus_width=5120,
    l2_cache=50 * MIB,
    shared_memory=228 << 10,
    threads=2048,
    power_limit=700000,
    mig=_profiles((10, 20, 40, 80), (16, 26, 32, 60, 64, 132)),
)
MODELS: dict[str, Model] = {
    "h100": H100,
    "h200": H100.replace(
        name="NVIDIA H200",
        pci_device_id=0x233510DE,
        pci_subsystem_id=0x18BE10DE,
        memory=143771 * MIB,
        reserved_memory=604 * MIB,
        memory_clock_mhz=3201,
        memory_bus_width=6144,
        l2_cache=60 * MIB,
        mig=_profiles((18, 35, 71, 141), (16, 26, 32, 60, 64, 132)),
    ),
    "a100": H100.replace(
        name="NVIDIA A100-SXM4-80GB",
        capability="8.0",
        pci_device_id=0x20B210DE,
        pci_subsystem_id=0x146310DE,
        memory=81920 * MIB,
        reserved_memory=617 * MIB,
        context_memory=412 * MIB,
        multiprocessors=108,
        clock_mhz=1410,
        memory_clock_mhz=1593,
        l2_cache=40 * MIB,
        shared_memory=164 << 10,
        power_limit=400000,
        mig=_profiles((10, 20, 40, 80), (14, 14, 28, 42, 56, 98)),
    ),
    "l40s": Model(
        name="NVIDIA L40S",
        brand=14,
        capability="8.9",
        pci_device_id=0x26B910DE,
        pci_subsystem_id=0x185110DE,
        memory=46068 * MIB,
        reserved_memory=597 * MIB,
        context_memory=438 * MIB,
        multiprocessors=142,
        clock_mhz=2520,
        memory_clock_mhz=9001,
        memory_bus_width=384,
        l2_cache=96 * MIB,
        shared_memory=100 << 10,
        threads=1536,
        power_limit=350000,
    ),
    "t4": Model(
        name="Tesla T4",
        brand=2,
        capability="7.5",
        pci_device_id=0x1EB810DE,
        pci_subsystem_id=0x12A210DE,
        memory=15360 * MIB,
        reserved_memory=266 * MIB,
        context_memory=100 * MIB,
        multiprocessors=40,
        clock_mhz=1590,
        memory_clock_mhz=5001,
        memory_bus_width=256,
        l2_cache=4 * MIB,
        shared_memory=64 << 10,
        threads=1024,
        power_limit=70000,
    ),
}
