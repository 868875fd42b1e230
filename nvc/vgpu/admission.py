"""Who shares each device now, and whether one more fits into what the operator has laid down for it."""

from __future__ import annotations

from nvc.errors import InputError
from nvc.value import Value
from nvc.vgpu import limits, policies, quota, registry
from nvc.vgpu.layout import POLICIES, POLICY_FIXED
from nvc.vgpu.living import living_of
from nvc.vgpu.registry import RegistryError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel
    from nvc.vgpu.quota import QuotaDevice
    from nvc.vgpu.registry import Entry
    from nvc.vgpu.slices import Slice


class Sharer(Value):
    """One slice on one device."""

    key: str
    cores: int
    weight: int
    fence: str = ""


def living_slices(kernel: Kernel) -> list[tuple[Entry, tuple[QuotaDevice, ...]]]:
    """The slices with processes, and their limits. Entries that cannot be read are left out."""
    base = registry.base_directory()
    entries = []
    for name in registry.entry_names(base):
        try:
            entries.append(registry.read_entry(f"{base}/{name}"))
        except RegistryError:
            continue
    lives = living_of(kernel, tuple(entries))
    found = []
    for entry in entries:
        if entry.key not in lives:
            continue
        try:
            found.append((entry, limits.read_quota(entry)))
        except (OSError, quota.QuotaError):
            continue
    return found


def sharers(kernel: Kernel) -> dict[str, tuple[Sharer, ...]]:
    """Who shares each device, by the device's UUID."""
    found: dict[str, tuple[Sharer, ...]] = {}
    for entry, shares in living_slices(kernel):
        for share in shares:
            if share.memory_limit:  # none: it is there for who looks behind CUDA_VISIBLE_DEVICES
                one = Sharer(entry.key, share.cores, share.weight, entry.fence)
                found[share.uuid] = (*found.get(share.uuid, ()), one)
    return found


def admit(kernel: Kernel, key: str, slice: Slice) -> None:
    """Refuse a slice that is one too many, or too heavy, for one of its devices. The caller holds the lock.

    Raises RegistryError, PolicyError.
    """
    everybody: dict[str, tuple[Sharer, ...]] | None = None
    for device in slice.devices:
        if device.hidden:
            continue
        laid_down = policies.read(device.uuid)
        if laid_down.policy == POLICY_FIXED:
            check_cap(device.cores, device.uuid)
        if not laid_down.bounds and ":" not in device.index:
            continue
        if everybody is None:
            everybody = sharers(kernel)
        others = [one for one in everybody.get(device.uuid, ()) if one.key != key]
        if slice.fence and others or any(one.fence for one in others):
            raise RegistryError(
                "make a slice", device.uuid, "it is fenced off for one slice, and another has it",
                "start it again, or ask for another device",
            )  # fmt: skip
        most = laid_down.max_instances
        if most and len(others) >= most:
            raise RegistryError(
                "make a slice", device.uuid, f"{len(others)} slices share it, of at most {most}",
                "`nvc-cli vgpu policy` shows that, and changes it with --max-instances",
            )  # fmt: skip
        check_weight("make a slice", device.uuid, device.weight, laid_down.total_weight, others)


def check_weight(step: str, uuid: str, weight: int, total: int, others: list[Sharer]) -> None:
    """Refuse a weight that is more than what is free of a device's total. Raises RegistryError."""
    free = max(total - sum(one.weight for one in others), 0)
    if total and weight > free:
        raise RegistryError(
            step, uuid, f"a weight of {weight}, and {free} of {total} is free",
            "`nvc-cli vgpu policy` shows that, and changes it with --total-weight",
        )  # fmt: skip


def check_cap(cores: int, what: str) -> None:
    """Refuse to have no cap where the device's policy is that of caps. Raises InputError."""
    if not cores:
        raise InputError(
            what, cause=f"its policy is {POLICIES[POLICY_FIXED]}, and the slice has no cap",
            hint="say how many percent of its time it gets",
        )  # fmt: skip
