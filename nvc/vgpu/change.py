"""Changes limits of slices whose containers run."""

from __future__ import annotations

import os

from nvc.errors import InputError
from nvc.request import SliceRequest
from nvc.vgpu import quota, registry
from nvc.vgpu.layout import NO_LIMIT
from nvc.vgpu.quota import QuotaError
from nvc.vgpu.registry import RegistryError
from nvc.vgpu.sizes import size_text
from nvc.vgpu.slices import SliceDevice, amount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.kernel import Kernel
    from nvc.vgpu.tenants import Tenant, TenantDevice


def set_limits(
    kernel: Kernel, tenant: Tenant, wanted: SliceRequest | None, devices: tuple[str, ...]
) -> tuple[str, ...]:
    """Give the devices of a slice other limits: all of them, or those named by index or UUID.

    `wanted` has one size, or one for each device; None lifts the limit. What is returned tells of limits that are
    below what is in use: nothing is taken away, but new allocations fail until enough is freed. Raises InputError,
    RegistryError.
    """
    chosen = _chosen(tenant, devices)
    limits = _limits(tenant, wanted, chosen)
    lock = registry.locked(kernel)
    try:
        fd = os.open(tenant.entry.quota, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            now = list(quota.read(fd))
            for place, limit in limits.items():
                now[place] = now[place].replace(memory_limit=limit)
            quota.write(fd, tuple(now))
        finally:
            os.close(fd)
    except (OSError, QuotaError, IndexError) as error:
        raise RegistryError("change limits", tenant.entry.quota, error) from None
    finally:
        os.close(lock)
    if tenant.problem:
        return (f"{tenant.short}: what is in use is not known: {tenant.problem}",)
    return tuple(
        f"{device.uuid}: {size_text(device.used)} are in use, more than the new limit of {size_text(limit)}: "
        "new allocations fail until enough is freed"
        for device, limit in ((tenant.devices[place], limit) for place, limit in limits.items())
        if device.used > limit
    )


def _chosen(tenant: Tenant, devices: tuple[str, ...]) -> list[int]:
    if not devices:
        return list(range(len(tenant.devices)))
    chosen = []
    for name in devices:
        found = [place for place, device in enumerate(tenant.devices) if _is_named(device, name)]
        if not found:
            raise InputError(
                "--device", name, "not a device of this slice", "`nvc-cli vgpu show` lists them"
            )
        chosen += found
    return list(dict.fromkeys(chosen))


def _is_named(device: TenantDevice, name: str) -> bool:
    return device.index == name or device.uuid.lower() == name.lower()


def _limits(tenant: Tenant, wanted: SliceRequest | None, chosen: list[int]) -> dict[int, int]:
    if wanted is None:
        return dict.fromkeys(chosen, NO_LIMIT)
    if len(wanted.memory) not in (1, len(chosen)):
        raise InputError("--memory", cause=f"{len(wanted.memory)} sizes for {len(chosen)} devices")
    limits = {}
    for number, place in enumerate(chosen):
        device = tenant.devices[place]
        size = wanted.memory[number if len(wanted.memory) > 1 else 0]
        limits[place] = amount(
            size, SliceDevice(device.uuid, device.index, device.name, device.memory, NO_LIMIT)
        )
    return limits
