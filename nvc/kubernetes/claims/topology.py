"""Where GPUs are in the machine, by sysfs."""

from __future__ import annotations

import os

from nvc.kubernetes.claims.devices import Place, pci_bus_id
from nvc.model.facts import HostFacts


def places(facts: HostFacts) -> dict[str, Place]:
    """For each bus id NUMA node and PCIe root, as far as the kernel tells them."""
    base = f"{facts.system_root.rstrip('/')}/sys/bus/pci/devices"
    paths = {gpu.bus_id: f"{base}/{pci_bus_id(gpu.bus_id)}" for gpu in facts.gpus}
    return {bus_id: Place(_numa_node(path), _root(path)) for bus_id, path in paths.items()}


def _numa_node(path: str) -> int:
    """-1: not known, or the machine has but one."""
    try:
        with open(f"{path}/numa_node", encoding="ascii") as file:
            return int(file.read(16))
    except (OSError, ValueError):
        return -1


def _root(path: str) -> str:
    """`pci0000:00` of ../../../devices/pci0000:00/0000:00:01.0/..."""
    try:
        parts = os.readlink(path).split("/")
    except OSError:
        return ""
    return next((part for part in parts if part.startswith("pci") and ":" in part), "")
