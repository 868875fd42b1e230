"""The tables of `nvc-cli vgpu top`, `ls` and `policy`: text from tenants. Nothing here looks at the host."""

from __future__ import annotations

import time

from nvc.base.columns import fitted
from nvc.base.errors import counted
from nvc.model.slices.layout import POLICY_NATIVE
from nvc.model.slices.policy import policy_of
from nvc.model.slices.slice import SliceDevice
from nvc.model.slices.time_settings import duration_text, enforced_text, time_settings_text
from nvc.slices.admin.device_policy import SharedDevice
from nvc.slices.policy.utilization import MOST, Received, percent
from nvc.slices.show.bars import short_size
from nvc.slices.show.history import Track
from nvc.slices.show.rows import DeviceSums, cells, pid_text, reserved_text, rows_of, sums_of
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus

#: The columns of `ls` and of `top`, and those that are left out where there is little room, the first ones first.
LS = ("SLICE", "DEVICE", "USED", "LIMIT", "USE", "RESERVED", "CORES", "WEIGHT", "POLICY", "PROCESSES", "AGE",
      "CONTAINER")  # fmt: skip
LS_SPARE = ("AGE", "CONTAINER", "WEIGHT", "PROCESSES", "USE", "RESERVED", "CORES", "POLICY", "LIMIT")
TOP = ("SLICE", "DEVICE", "USED", "LIMIT", "USE", "RESERVED", "UTILIZED", "ENTITLED", "STATE", "CORES", "WEIGHT",
       "WAITED", "POLICY", "PROCESSES", "AGE", "CONTAINER")  # fmt: skip
TOP_SPARE = ("AGE", "USE", "POLICY", "CONTAINER", "PROCESSES", "WEIGHT", "ENTITLED", "LIMIT", "RESERVED", "WAITED",
             "CORES", "USED", "STATE")  # fmt: skip
DEVICES_SPARE = ("MEMORY", "RESERVED", "UUID", "ENTITLED", "PROMISED", "SLICES", "USED")


def slices(everybody: tuple[SliceStatus, ...], now: float, width: int = 0) -> str:
    """One line for each device of each slice, in at most `width` columns; 0: every column, whole."""
    found = _filled(cells(LS, rows_of(everybody), now), "RESERVED", width)
    return fitted(found, width, LS_SPARE, ("CONTAINER",), ("SLICE",))


def processes(everybody: tuple[SliceStatus, ...], width: int = 0) -> str:
    """One line for each process that holds something, "" if none does; ids are those of the host."""
    rows: list[tuple[str, ...]] = [("SLICE", "PID", "DEVICE", "USED", "NAME")]
    for tenant in everybody:
        for account in tenant.accounts:
            for device, used in zip(tenant.devices, account.used):
                if used:
                    rows.append((tenant.name, pid_text(account), device.index, short_size(used), account.name))
    return fitted(rows, width, middle=("SLICE",)) if rows[1:] else ""


def plain_top(
    everybody: tuple[SliceStatus, ...],
    now: float,
    received: dict[tuple[str, str], Received],
    width: int = 0,
    gone: int = 0,
    host: tuple[SliceDevice, ...] = (),
) -> str:
    """What `top` prints: devices with their tenants' sums, slices with what they received, processes.

    `width` is that of the terminal, 0 where there is none. `gone` slices that have ended are left out. `host` has
    the devices that are shown without slices, too.
    """
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    running = sum(tenant.alive for tenant in everybody)
    parts = [f"nvc-cli vgpu top, {clock}, {running} running of {counted(len(everybody) + gone, 'slice')}\n"]
    everybody = tuple(sorted(everybody, key=lambda tenant: not tenant.alive))
    rows = rows_of(everybody, received)
    if sums := sums_of(rows, host):
        parts.append(devices(sums, width))
    if rows:
        found = _filled(cells(TOP, rows, now), "RESERVED", width)
        parts.append(fitted(found, width, TOP_SPARE, ("CONTAINER",), ("SLICE",)))
    parts += [enforcement(everybody)] if enforcement(everybody) else []
    parts += [held] if (held := processes(everybody, width)) else []
    return "\n".join(parts)


def devices(sums: list[DeviceSums], width: int = 0) -> str:
    """One line for each device: what its slices may take and do take together."""
    rows: list[tuple[str, ...]] = [
        ("DEVICE", "UUID", "SLICES", "USED", "PROMISED", "RESERVED", "MEMORY", "UTILIZED", "ENTITLED")
    ]
    for one in sums:
        memory = short_size(one.memory) if one.memory else "?"
        rows.append((
            one.index, one.uuid, str(len(one.rows)), short_size(one.used), short_size(one.promised),
            reserved_text(one.reserved), memory, percent(one.utilized, one.most), percent(one.entitled, MOST),
        ))  # fmt: skip
    return fitted(_filled(rows, "RESERVED", width), width, DEVICES_SPARE, ("UUID",))


def policies_table(shared: tuple[SharedDevice, ...], width: int = 0) -> str:
    """One line for each device: its policy and bounds, and how much of these is taken."""
    rows: list[tuple[str, ...]] = [("DEVICE", "UUID", "POLICY", "SLICES", "LIMITS", "WEIGHT", "QUANTUM")]
    for device in shared:
        own = device.own
        policy = policy_of(own.policy).name if own.policy >= 0 else "-"
        policy += f", floor {duration_text(own.floor_us)}" if own.floor_us else ""
        policy += f", idle-suspend {duration_text(own.idle_s * 1_000_000)}" if own.idle_s else ""
        slices = f"{len(device.sharers)}{f' of {own.max_instances}' if own.max_instances else ''}"
        weight = f"{device.weight}{f' of {own.total_weight}' if own.total_weight else ''}"
        most = f" of {short_size(device.most)}" if own.oversubscribe else ""
        limits = f"{short_size(device.limits)}{most}"
        quantum = duration_text(own.quantum_us) if own.quantum_us else "-"
        rows.append((device.index, device.uuid, policy, slices, limits, weight, quantum))
    return fitted(rows, width, ("UUID", "QUANTUM", "LIMITS", "SLICES"), ("UUID",))


def tracks_table(tracks: tuple[Track, ...], width: int = 0) -> str:
    """One line for each slice on each device of a report."""
    rows: list[tuple[str, ...]] = [("SLICE", "DEVICE", "ENTITLED", "MEAN", "LEAST", "MOST", "READINGS", "UUID")]
    for track in tracks:
        shares = [share for _, share in track.points]
        entitled = track.entitlement[-1][1] if track.entitlement else None
        parts = map(percent, (entitled, track.mean, min(shares), max(shares)))
        rows.append((*track.name.rsplit(" on ", 1), *parts, str(len(shares)), track.uuid))
    return fitted(rows, width, ("READINGS", "UUID", "ENTITLED", "LEAST"), ("UUID",), ("SLICE",))


def enforcement(everybody: tuple[SliceStatus, ...]) -> str:
    """A line for each policy that is not enforced, with the cause, and what is not known; "" where all are."""
    found = {
        enforced_text(device.policy, device.not_enforced)
        + ("" if device.timed else ": GPU time is not measured"): None
        for tenant in everybody
        for device in tenant.devices
        if device.not_enforced
    }
    return "".join(f"{text}\n" for text in found)


def _filled(rows: list[tuple[str, ...]], title: str, width: int) -> list[tuple[str, ...]]:
    """The rows of a table for a terminal without the column of this title, if no row has something in it.

    For a program (`width` is 0) the columns are always the same.
    """
    at = rows[0].index(title)
    if not width or any(row[at] != "-" for row in rows[1:]):
        return rows
    return [(*row[:at], *row[at + 1 :]) for row in rows]


def time_text(device: SliceDeviceStatus) -> str:
    """What the slice may have of the device's time."""
    name = policy_of(device.policy).name
    text = time_settings_text(device)
    if device.not_enforced:
        text = enforced_text(device.policy, device.not_enforced) + text.removeprefix(name)
    if device.pace is not None and device.pace < 100:
        text = f"{text}, work for at most {device.pace}% of the time now"
    if device.asked_policy not in (device.policy, POLICY_NATIVE):
        text = f"{text}, asks for {policy_of(device.asked_policy).name}"
    return f"{text}, paused" if device.paused else text


def received_text(device: SliceDeviceStatus, seconds: float) -> str:
    """What the slice has had of the device's time since it was made: by the driver, or as its processes say."""
    if not device.timed:
        return f"utilization is not measured: {device.not_enforced}"
    if device.budget is None:
        return "utilization unknown"
    budget = device.budget
    if not (device.measured or policy_of(device.policy).server):
        return "utilization is not measured: it has no cap, and nvcd does not keep its time"
    had = budget.charged / 1e9
    # Files tell when it was made: not where the clock was set back after that.
    part = f", {percent(had / seconds)} of the time since its start" if seconds > max(had, 1e-3) else ""
    waited = f"{budget.waited / 1e9:.3f} s"
    if device.kept:
        return f"used {had:.3f} s{part}; stopped for {waited}"
    return f"used {had:.3f} s{part}; {budget.launches} launches, held back for {waited}"
