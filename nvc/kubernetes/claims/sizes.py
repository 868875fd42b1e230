"""The resources that the device plugin offers: whole devices, and the sizes of slices that config.toml defines."""

from __future__ import annotations

from nvc.base.errors import NvcError
from nvc.base.value import Value
from nvc.frontends.cdi.sliced import Slicing, sliced
from nvc.kubernetes.claims.devices import GPU, Device
from nvc.kubernetes.claims.holdings import Size
from nvc.kubernetes.names import RESOURCE_GPU, RESOURCE_MIG, RESOURCE_SLICE
from nvc.model.facts import HostFacts

#: Characters of a resource's name behind the domain.
NAME_MAX = 63


class Offered(Value):
    """What a node can offer."""

    sizes: tuple[Size, ...]
    slicing: Slicing | None  # of the sizes among them that are slices
    problems: tuple[str, ...]  # why others are not offered


def resources(facts: HostFacts, devices: tuple[Device, ...], slicing: Slicing | None) -> Offered:
    """Whole devices, and every size that a device of this node comes in."""
    whole: dict[str, list[tuple[str, int]]] = {}
    for device in devices:
        whole.setdefault(_whole(device), []).append((device.uuid, device.memory))
    found = [Size(resource, "", tuple(limits)) for resource, limits in whole.items()]
    known = {device.uuid for device in devices}
    kept, problems = [], []
    for size in slicing.sizes if slicing is not None else ():
        assert slicing is not None
        resource = f"{RESOURCE_SLICE}{size.name}"
        if len(resource.rpartition("/")[2]) > NAME_MAX:
            problems.append(f"{size.name} is not offered: {resource} is longer than {NAME_MAX} characters")
            continue
        try:
            parts = sliced(facts, slicing.replace(sizes=(size,)))
        except NvcError as error:
            problems.append(f"{size.name} is not offered: {error}")
            continue
        limits = tuple((uuid, part.limit) for uuid, own in parts.items() for _, part in own if uuid in known)
        found.append(Size(resource, size.name, limits, size.cores))
        kept.append(size)
    return Offered(
        tuple(found), slicing.replace(sizes=tuple(kept)) if slicing and kept else None, tuple(problems)
    )


def _whole(device: Device) -> str:
    """The resource of a whole device: MIG devices by profile, as users of NVIDIA's device plugin know them."""
    if device.kind == GPU:
        return RESOURCE_GPU
    profile = next((str(value) for name, _, value in device.attributes if name == "profile"), "")
    return f"{RESOURCE_MIG}-{profile.replace('+', '.')}" if profile else RESOURCE_MIG
