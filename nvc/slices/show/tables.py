"""The tables of `nvc-cli vgpu top`, `ls` and `policy`: text from tenants. Nothing here looks at the host."""

from __future__ import annotations

import time

from nvc.columns import fitted
from nvc.slices.model.layout import NO_LIMIT
from nvc.slices.model.policy import policy_of
from nvc.slices.model.sizes import size_text
from nvc.slices.model.time_settings import enforced_text, time_settings_text
from nvc.slices.policy.utilization import Received, percent, state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.slices.admin.device_policy import SharedDevice
    from nvc.slices.show.history import Track
    from nvc.slices.store.status import SliceDeviceStatus, SliceStatus


def slices(everybody: tuple[SliceStatus, ...], now: float, width: int = 0) -> str:
    """One line for each device of each slice, in at most `width` columns unless that is 0."""
    rows: list[tuple[str, ...]] = [
        ("SLICE", "DEVICE", "LIMIT", "RESERVED", "USED", "USE", "CORES", "WEIGHT", "POLICY", "PROCESSES", "AGE",
         "CONTAINER")
    ]  # fmt: skip
    for tenant in everybody:
        shown = [device for device in tenant.devices if not device.hidden] or tenant.devices[:1]
        for place, device in enumerate(shown):
            first = place == 0
            rows.append(
                (
                    tenant.name if first else "",
                    device.index,
                    limit_text(device),
                    reserved_text(device.reserved),
                    used_text(tenant, device),
                    use_text(tenant, device),
                    f"{device.cores}%" if device.cores else "-",
                    str(device.weight),
                    policy_text(device),
                    processes_text(tenant) if first else "",
                    age_text(now - tenant.entry.created) if first else "",
                    tenant.origin if first else "",
                )
            )
    spare = ("AGE", "CONTAINER", "WEIGHT", "PROCESSES", "USE")
    found = _filled(rows, "RESERVED")
    return fitted(found, width, spare, ("CONTAINER",), ("SLICE",)) + enforcement(everybody)


def processes(everybody: tuple[SliceStatus, ...], width: int = 0) -> str:
    """One line for each process that holds something; ids are those inside its container."""
    rows: list[tuple[str, ...]] = [("SLICE", "PID", "DEVICE", "USED", "NAME")]
    for tenant in everybody:
        for account in tenant.accounts:
            for device, used in zip(tenant.devices, account.used):
                if used:
                    rows.append((tenant.name, str(account.pid), device.index, size_text(used), account.name))
    return fitted(rows, width, middle=("SLICE",))


def screen(
    everybody: tuple[SliceStatus, ...],
    now: float,
    received: dict[tuple[str, str], Received],
    width: int = 0,
    gone: int = 0,
) -> str:
    """What `top` prints: devices with their tenants' sums, slices with what they received, processes.

    `width` is that of the terminal, 0 where there is none. So many slices that are gone are left out.
    """
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    running = sum(tenant.alive for tenant in everybody)
    parts = [f"nvc-cli vgpu top, {clock}, {running} running of {len(everybody) + gone} slices\n"]
    everybody = tuple(sorted(everybody, key=lambda tenant: not tenant.alive))
    if everybody:
        parts += [devices(everybody, received, width), sharing(everybody, now, received, width)]
    parts += [enforcement(everybody)] if enforcement(everybody) else []
    if any(tenant.accounts for tenant in everybody):
        parts.append(processes(everybody, width))
    return "\n".join(parts)


def devices(everybody: tuple[SliceStatus, ...], received: dict[tuple[str, str], Received], width: int = 0) -> str:
    """One line for each device: what its slices may take and do take together."""
    rows: list[tuple[str, ...]] = [
        ("DEVICE", "UUID", "MEMORY", "SLICES", "PROMISED", "RESERVED", "USED", "ENTITLED", "UTILIZED")
    ]
    shown: dict[str, list[tuple[SliceStatus, SliceDeviceStatus]]] = {}
    for tenant in everybody:
        for device in tenant.devices:
            if tenant.alive and not device.hidden:
                shown.setdefault(device.uuid, []).append((tenant, device))
    for uuid, found in sorted(shown.items(), key=lambda item: item[1][0][1].index):
        device = found[0][1]
        keys = [(tenant.entry.key, uuid) for tenant, _ in found]
        promised = sum(one.memory if one.limit == NO_LIMIT else one.limit for _, one in found)
        entitled = [one.entitlement for _, one in found if one.entitlement is not None]
        had = [received[key].share for key in keys if key in received]
        rows.append(
            (
                device.index,
                uuid,
                size_text(device.memory) if device.memory else "?",
                str(len(found)),
                size_text(promised),
                reserved_text(sum(one.reserved for _, one in found)),
                size_text(sum(one.used for _, one in found)),
                percent(sum(entitled) if entitled else None),
                percent(sum(had) if had else None),
            )
        )
    return fitted(_filled(rows, "RESERVED"), width, ("MEMORY",), ("UUID",))


def sharing(
    everybody: tuple[SliceStatus, ...], now: float, received: dict[tuple[str, str], Received], width: int = 0
) -> str:
    """One line for each device of each slice: what it asks for, its entitlement, and what it received."""
    rows: list[tuple[str, ...]] = [
        ("SLICE", "DEVICE", "ASKED", "ENTITLED", "UTILIZED", "WAITED", "STATE", "LIMIT", "RESERVED", "USED", "USE",
         "POLICY", "PROCESSES", "AGE", "CONTAINER")
    ]  # fmt: skip
    for tenant in everybody:
        first = True
        for device in tenant.devices:
            if device.hidden:
                continue
            key = (tenant.entry.key, device.uuid)
            had = received.get(key)
            rows.append(
                (
                    tenant.name if first else "",
                    device.index,
                    asked_text(device),
                    percent(device.entitlement),
                    percent(had.share if had else None),
                    percent(had.waited if had else None),
                    state(tenant, device, had),
                    limit_text(device),
                    reserved_text(device.reserved),
                    used_text(tenant, device),
                    use_text(tenant, device),
                    policy_text(device),
                    processes_text(tenant) if first else "",
                    age_text(now - tenant.entry.created) if first else "",
                    tenant.origin if first else "",
                )
            )
            first = False
    spare = ("AGE", "USE", "POLICY", "CONTAINER", "PROCESSES", "ENTITLED", "LIMIT", "RESERVED")
    return fitted(_filled(rows, "RESERVED"), width, spare, ("CONTAINER",))


def policies_table(shared: tuple[SharedDevice, ...], width: int = 0) -> str:
    """One line for each device: its policy and bounds, and how much of these is taken."""
    rows: list[tuple[str, ...]] = [("DEVICE", "UUID", "POLICY", "SLICES", "WEIGHT", "FREE", "QUANTUM")]
    for device in shared:
        own = device.own
        quantum = "-"
        if own.quantum_us:
            quantum = f"{own.quantum_us // 1000}ms" if own.quantum_us % 1000 == 0 else f"{own.quantum_us}us"
        free = device.free_weight
        rows.append(
            (
                device.index,
                device.uuid,
                policy_of(own.policy).name if own.policy >= 0 else "-",
                f"{len(device.sharers)} of {own.max_instances}"
                if own.max_instances
                else str(len(device.sharers)),
                f"{device.weight} of {own.total_weight}" if own.total_weight else str(device.weight),
                "-" if free is None else str(free),
                quantum,
            )
        )
    return fitted(rows, width, tail=("UUID",))


def tracks_table(tracks: tuple[Track, ...], width: int = 0) -> str:
    """One line for each slice on each device of a report."""
    rows: list[tuple[str, ...]] = [("SLICE", "ENTITLED", "MEAN", "LEAST", "MOST", "READINGS", "UUID")]
    for track in tracks:
        shares = [share for _, share in track.points]
        rows.append(
            (
                track.name,
                percent(track.entitlement[-1][1] if track.entitlement else None),
                percent(track.mean),
                percent(min(shares)),
                percent(max(shares)),
                str(len(shares)),
                track.uuid,
            )
        )
    return fitted(rows, width, ("READINGS",), ("UUID",))


def asked_text(device: SliceDeviceStatus) -> str:
    """What a slice asks for of a device's time: a cap, a weight, or neither."""
    if device.cores:
        return f"{device.cores}%"
    return f"weight {device.weight}" if policy_of(device.policy).weighs else "-"


def policy_text(device: SliceDeviceStatus) -> str:
    """The policy for people, whether it is enforced, and whether it is paused."""
    name = policy_of(device.policy).name + (" (not enforced)" if device.not_enforced else "")
    return f"{name}, paused" if device.paused else name


def enforcement(everybody: tuple[SliceStatus, ...]) -> str:
    """A line for each policy that is not enforced, with the cause; "" where all are."""
    found = {
        enforced_text(device.policy, device.not_enforced): None
        for tenant in everybody
        for device in tenant.devices
        if device.not_enforced
    }
    return "".join(f"{text}\n" for text in found)


def limit_text(device: SliceDeviceStatus) -> str:
    """The limit for people."""
    return "none" if device.limit == NO_LIMIT else size_text(device.limit)


def reserved_text(count: int) -> str:
    """Bytes that are reserved, for people; `-` for none."""
    return size_text(count) if count else "-"


def _filled(rows: list[tuple[str, ...]], title: str) -> list[tuple[str, ...]]:
    """The rows of a table without the column of this title, if no row has something in it."""
    at = rows[0].index(title)
    if any(row[at] != "-" for row in rows[1:]):
        return rows
    return [(*row[:at], *row[at + 1 :]) for row in rows]


def time_text(device: SliceDeviceStatus) -> str:
    """What the slice may have of the device's time."""
    name, text = policy_of(device.policy).name, time_settings_text(device.cores, device.weight, device.policy)
    if device.not_enforced:
        text = enforced_text(device.policy, device.not_enforced) + text.removeprefix(name)
    return f"{text}, paused" if device.paused else text


def received_text(device: SliceDeviceStatus, seconds: float) -> str:
    """What the slice has had of the device's time since it was made, as its processes say."""
    if device.budget is None:
        return "utilization unknown"
    budget = device.budget
    had = budget.charged / 1e9
    # Files tell when it was made: not where the clock was set back after that.
    part = f", {percent(had / seconds)} of the time since its start" if seconds > max(had, 1e-3) else ""
    return f"used {had:.3f} s{part}; {budget.launches} launches, held back for {budget.waited / 1e9:.3f} s"


def used_text(tenant: SliceStatus, device: SliceDeviceStatus) -> str:
    """What is in use, `?` where it is not known, `-` where nobody is left."""
    if not tenant.alive:
        return "-"
    return "?" if tenant.problem else size_text(device.used)


def use_text(tenant: SliceStatus, device: SliceDeviceStatus) -> str:
    """Percent of the limit."""
    if not tenant.alive or tenant.problem or device.limit in (0, NO_LIMIT):
        return "-"
    return f"{min(device.used * 100 // device.limit, 999)}%"


def processes_text(tenant: SliceStatus) -> str:
    """How many processes use a GPU, of all that there are."""
    return f"{len(tenant.accounts)} of {len(tenant.pids)}" if tenant.alive else "gone"


def age_text(seconds: float) -> str:
    """`45s`, `12m`, `3h`, `9d`."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"
