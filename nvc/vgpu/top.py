"""The table of `nvc-cli vgpu top` and `ls`: text from tenants. Nothing here looks at the host."""

from __future__ import annotations

import time

from nvc.vgpu.layout import NO_LIMIT, POLICIES
from nvc.vgpu.shares import share_text
from nvc.vgpu.sizes import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.vgpu.govern import Governed
    from nvc.vgpu.tenants import Tenant, TenantDevice

HEAD = ("SLICE", "DEVICE", "LIMIT", "USED", "USE", "PROCESSES", "AGE", "ROOTFS")


def slices(everybody: tuple[Tenant, ...], now: float) -> str:
    """One line for each device of each slice."""
    rows: list[tuple[str, ...]] = [HEAD]
    for tenant in everybody:
        for place, device in enumerate(tenant.devices):
            first = place == 0
            rows.append(
                (
                    tenant.short if first else "",
                    device.index,
                    limit_text(device),
                    used_text(tenant, device),
                    use_text(tenant, device),
                    processes_text(tenant) if first else "",
                    age_text(now - tenant.entry.created) if first else "",
                    (tenant.entry.rootfs or "(a program)") if first else "",
                )
            )
    return aligned(rows)


def processes(everybody: tuple[Tenant, ...]) -> str:
    """One line for each process that holds something; ids are those inside its container."""
    rows: list[tuple[str, ...]] = [("SLICE", "PID", "DEVICE", "USED", "NAME")]
    for tenant in everybody:
        for account in tenant.accounts:
            for device, used in zip(tenant.devices, account.used):
                if used:
                    rows.append(
                        (tenant.short, str(account.pid), device.index, size_text(used), account.name)
                    )
    return aligned(rows)


def screen(everybody: tuple[Tenant, ...], now: float) -> str:
    """What `top` shows: devices with their tenants' sums, slices, processes."""
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    running = sum(tenant.alive for tenant in everybody)
    parts = [f"nvc-cli vgpu top, {clock}, {running} running of {len(everybody)} slices\n"]
    if everybody:
        parts += [devices(everybody), slices(everybody, now)]
    if any(tenant.accounts for tenant in everybody):
        parts.append(processes(everybody))
    return "\n".join(parts)


def devices(everybody: tuple[Tenant, ...]) -> str:
    """One line for each device: what its slices may take and do take together."""
    sums: dict[str, list[int]] = {}
    shown: dict[str, TenantDevice] = {}
    for tenant in everybody:
        if not tenant.alive:
            continue
        for device in tenant.devices:
            shown[device.uuid] = device
            total = sums.setdefault(device.uuid, [0, 0, 0])
            total[0] += 1
            total[1] += device.memory if device.limit == NO_LIMIT else device.limit
            total[2] += device.used
    rows: list[tuple[str, ...]] = [("DEVICE", "UUID", "MEMORY", "SLICES", "PROMISED", "USED")]
    for uuid, (count, promised, used) in sorted(sums.items(), key=lambda item: shown[item[0]].index):
        device = shown[uuid]
        memory = size_text(device.memory) if device.memory else "?"
        rows.append((device.index, uuid, memory, str(count), size_text(promised), size_text(used)))
    return aligned(rows)


def policies_table(governed: tuple[Governed, ...]) -> str:
    """One line for each device: what is laid down for it, and what of that is taken."""
    rows: list[tuple[str, ...]] = [("DEVICE", "UUID", "POLICY", "SLICES", "WEIGHT", "FREE", "TURN")]
    for device in governed:
        own = device.laid_down
        turn = "-"
        if own.slice_us:
            turn = f"{own.slice_us // 1000}ms" if own.slice_us % 1000 == 0 else f"{own.slice_us}us"
        free = device.free_weight
        rows.append(
            (
                device.index,
                device.uuid,
                POLICIES[own.policy] if own.policy >= 0 else "-",
                f"{len(device.sharers)} of {own.max_instances}"
                if own.max_instances
                else str(len(device.sharers)),
                f"{device.weight} of {own.total_weight}" if own.total_weight else str(device.weight),
                "-" if free is None else str(free),
                turn,
            )
        )
    return aligned(rows)


def limit_text(device: TenantDevice) -> str:
    """The limit for people."""
    return "none" if device.limit == NO_LIMIT else size_text(device.limit)


def time_text(device: TenantDevice) -> str:
    """What the slice may have of the device's time."""
    text = share_text(device.cores, device.weight, device.policy)
    return f"{text}, paused" if device.paused else text


def used_text(tenant: Tenant, device: TenantDevice) -> str:
    """What is in use, `?` where it is not known, `-` where nobody is left."""
    if not tenant.alive:
        return "-"
    return "?" if tenant.problem else size_text(device.used)


def use_text(tenant: Tenant, device: TenantDevice) -> str:
    """Percent of the limit."""
    if not tenant.alive or tenant.problem or device.limit in (0, NO_LIMIT):
        return "-"
    return f"{min(device.used * 100 // device.limit, 999)}%"


def processes_text(tenant: Tenant) -> str:
    """How many processes use a GPU, of all that there are."""
    return f"{len(tenant.accounts)} of {len(tenant.pids)}" if tenant.alive else "gone"


def age_text(seconds: float) -> str:
    """`45s`, `12m`, `3h`, `9d`."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width, names without control characters."""
    clean = [tuple("".join(c if c.isprintable() else "?" for c in cell) for cell in row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*clean)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in clean)
    return "".join(f"{line}\n" for line in lines)
