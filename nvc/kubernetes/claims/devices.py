"""The devices of a node as the scheduler sees them. Pure.

A GPU, or a MIG device of one in MIG mode, is one device. Any number of claims may have a part of it: its memory and
its cores are counted. A claim that asks for no amount gets all of both, and so the device for itself.
"""

from __future__ import annotations

from typing import Any

from nvc.base.value import Value
from nvc.kubernetes.claims.quantity import MIB, mib_text
from nvc.kubernetes.names import CORES, MEMORY
from nvc.model.facts import Gpu, HostFacts, MigDevice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kubernetes.health.board import Problem

ALL_CORES = 100
STRING_MAX = 64  # characters of an attribute
GPU, MIG = "gpu", "mig"
#: The domain of attributes that all drivers share.
STANDARD = "resource.kubernetes.io"
TAINTS_MAX = 16
#: By compute capability, or by its first number.
ARCHITECTURES = {
    "5": "Maxwell", "6": "Pascal", "7": "Volta", "7.5": "Turing", "8": "Ampere", "8.9": "Ada Lovelace",
    "9": "Hopper", "10": "Blackwell", "12": "Blackwell",
}  # fmt: skip
TAINT_PREFIX = "gpu.nvc.dev/"


class Place(Value):
    """Where a GPU is in the machine."""

    numa_node: int = -1  # -1: not known
    pcie_root: str = ""  # pci0000:00


class Device(Value):
    """One device of the node."""

    name: str  # in the pool: gpu-0, gpu-0-mig-7-0
    kind: str  # gpu or mig
    uuid: str
    index: str  # as nvc names it on the host: 0, or 0:1
    memory: int  # bytes, whole MiB
    attributes: tuple[tuple[str, str, object], ...]  # name, type of its value, value
    bus_id: str  # of the GPU
    numa_node: int = -1
    parent: str = ""  # UUID of the GPU that a MIG device is of
    problems: tuple[Problem, ...] = ()  # of its GPU; each is a taint
    percent: int = 100  # of its memory that slices of it may add up to
    doubt: str = ""  # why that is not what the operator says

    @property
    def room(self) -> int:
        """What slices of it may add up to: bytes, whole MiB."""
        return self.memory // MIB * self.percent // 100 * MIB


def devices_of(facts: HostFacts, places: dict[str, Place], profiles: dict[str, str]) -> tuple[Device, ...]:
    """All devices in the host's order. `places` by bus id; `profiles` of MIG devices by UUID, as far as known.

    A device whose memory NVML does not tell is left out: the scheduler could not count it.
    """
    found = []
    for gpu in facts.gpus:
        place = places.get(gpu.bus_id, Place())
        common = _common(facts, gpu, place)
        if gpu.mig_enabled:
            parts = [_mig(gpu, part, place, common, profiles.get(part.uuid, "")) for part in gpu.mig]
            found += [part for part in parts if part.memory]
        elif gpu.memory:
            own = (("type", "string", GPU), ("uuid", "string", gpu.uuid))
            name = f"gpu-{gpu.minor}"
            found.append(
                Device(name, GPU, gpu.uuid, str(gpu.index), gpu.memory * MIB, (*own, *common), gpu.bus_id,
                       place.numa_node)
            )  # fmt: skip
    return tuple(found)


def _mig(gpu: Gpu, part: MigDevice, place: Place, common: Any, profile: str) -> Device:
    name = f"gpu-{gpu.minor}-mig-{part.gpu_instance}-{part.compute_instance}"
    own: list[tuple[str, str, object]] = [
        ("type", "string", MIG), ("uuid", "string", part.uuid), ("parentUUID", "string", gpu.uuid),
    ]  # fmt: skip
    if profile:
        own.append(("profile", "string", profile[:STRING_MAX]))
    return Device(
        name, MIG, part.uuid, f"{gpu.index}:{part.index}", part.memory * MIB, (*own, *common), gpu.bus_id,
        place.numa_node, gpu.uuid,
    )  # fmt: skip


def _common(facts: HostFacts, gpu: Gpu, place: Place) -> tuple[tuple[str, str, object], ...]:
    """Attributes of a GPU and its parts, under the names that NVIDIA's driver uses too."""
    found: list[tuple[str, str, object]] = [
        ("productName", "string", gpu.name[:STRING_MAX]),
        ("brand", "string", gpu.brand[:STRING_MAX]),
        ("architecture", "string", architecture(gpu.architecture)),
        ("cudaComputeCapability", "version", semantic(gpu.architecture)),
        ("driverVersion", "version", semantic(facts.driver_version)),
        ("cudaDriverVersion", "version", semantic(facts.cuda_version)),
        ("index", "int", gpu.index),
        ("minor", "int", gpu.minor),
        (f"{STANDARD}/pciBusID", "string", pci_bus_id(gpu.bus_id)),
    ]
    if place.pcie_root:
        found.append((f"{STANDARD}/pcieRoot", "string", place.pcie_root))
    if place.numa_node >= 0:
        found.append((f"{STANDARD}/numaNode", "int", place.numa_node))
    return tuple(one for one in found if one[2] != "")


def oversubscribed(device: Device, percent: int, doubt: str) -> Device:
    """The device with what the operator says of the sum of its slices, which holds only without a `doubt`."""
    text = f"refused: {doubt.partition(';')[0]}" if doubt else f"{percent}%"
    own = (*device.attributes, ("oversubscription", "string", text[:STRING_MAX]))
    return device.replace(percent=100 if doubt else percent, doubt=doubt, attributes=own)


def architecture(capability: str) -> str:
    """The name of the architecture with a compute capability, "" for one that is not known."""
    return ARCHITECTURES.get(capability) or ARCHITECTURES.get(capability.partition(".")[0], "")


def semantic(version: str) -> str:
    """A version with three numbers, as the API server wants it: `13.0` is 13.0.0, 580.159.04 is 580.159.4.

    "" where it is none.
    """
    parts = version.split(".")[:3]
    if not all(part.isascii() and part.isdigit() for part in parts):
        return ""
    return ".".join(str(int(part)) for part in (*parts, "0", "0")[:3])


def pci_bus_id(bus_id: str) -> str:
    """`0000:3b:00.0`, as the kernel writes it: NVML's domain has eight digits."""
    domain, _, rest = bus_id.partition(":")
    return f"{domain[-4:]}:{rest}"


def document(device: Device) -> dict[str, Any]:
    """A device as an entry of a ResourceSlice."""
    memory, cores = mib_text(device.memory), str(ALL_CORES)
    found: dict[str, Any] = {
        "name": device.name,
        "attributes": {name: {kind: value} for name, kind, value in device.attributes},
        "allowMultipleAllocations": True,
        # Nobody gets more than there is. Who asks for no amount has all cores, and so the device alone.
        "capacity": {MEMORY: _capacity(mib_text(device.room), memory, "1Mi"), CORES: _capacity(cores, cores, "1")},
    }
    if device.problems:
        found["taints"] = [
            {"key": f"{TAINT_PREFIX}{one.kind}", "effect": "NoExecute" if one.evict else "NoSchedule"}
            | ({"value": one.value[:63]} if one.value else {})
            for one in device.problems[:TAINTS_MAX]
        ]
    return found


def _capacity(total: str, most: str, least: str) -> dict[str, Any]:
    """`most` of `total` by default, else from `least` on in steps of that."""
    accepted = {"min": least, "max": most, "step": least}
    return {"value": total, "requestPolicy": {"default": most, "validRange": accepted}}
