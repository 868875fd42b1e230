"""The rows of `ls` and of both forms of `top`: one for each device of a slice, and the text of each column. Pure.

A column is one entry of CELLS. The tables in tables.py name the columns that they show, and screen.py has a
`Column` for each of the interactive `top`.
"""

from __future__ import annotations

from collections.abc import Callable

from nvc.base.value import Value
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.ledger import Account
from nvc.model.slices.policy import policy_of
from nvc.model.slices.slice import SliceDevice
from nvc.slices.policy.utilization import MOST, Received, percent, state
from nvc.slices.show.bars import short_size
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus


class Row(Value):
    """One slice on one device."""

    tenant: SliceStatus
    device: SliceDeviceStatus
    had: Received | None = None  # since the picture before
    past: tuple[float, ...] = ()  # the last utilizations
    first: bool = True  # of the slice's rows

    @property
    def received(self) -> float | None:
        return self.had.share if self.had else None

    @property
    def state(self) -> str:
        return state(self.tenant, self.device, self.had)

    @property
    def limit(self) -> int:
        """Bytes that it may have; 0: not known."""
        return self.device.memory if self.device.limit == NO_LIMIT else self.device.limit

    @property
    def used(self) -> int | None:
        """Bytes that it has; None: not known."""
        return self.device.used if self.tenant.alive and not self.tenant.problem else None

    @property
    def memory_text(self) -> str:
        """Used and limit."""
        used = "?" if self.tenant.alive else "-"
        if self.used is not None:
            used = short_size(self.used)
        return f"{used}/{short_size(self.limit) if self.limit else '?'}"


class DeviceSums(Value):
    """What the living slices of one device have together; amounts in bytes, times as parts of the device's."""

    index: str
    uuid: str
    name: str
    memory: int  # 0: not known
    rows: tuple[Row, ...]  # none: no slice uses it
    promised: int
    reserved: int
    used: int
    entitled: float | None  # None: no slice has an entitlement
    utilized: float | None  # None: no slice's use is known

    @property
    def most(self) -> float:
        """What `utilized` can be: more than the whole where slices have work at the same time, by the shim also if
        it waits for that of others.
        """
        return 1.0 if all(row.device.kept for row in self.rows) else MOST


def rows_of(
    everybody: tuple[SliceStatus, ...],
    received: dict[tuple[str, str], Received] | None = None,
    past: dict[tuple[str, str], tuple[float, ...]] | None = None,
) -> list[Row]:
    """A row for each device that a slice may use, in the order of the slices.

    `received` and `past` are by the slice's key and the device's UUID.
    """
    found = []
    for tenant in everybody:
        usable = [device for device in tenant.devices if not device.hidden]
        for device in usable:
            key = tenant.entry.key, device.uuid
            first = device is usable[0]
            found.append(Row(tenant, device, (received or {}).get(key), (past or {}).get(key, ()), first))
    return found


def sums_of(rows: list[Row], devices: tuple[SliceDevice, ...] = ()) -> list[DeviceSums]:
    """The sums of the living slices of each device, by its index. `devices` of the host need no slice."""
    by_device: dict[str, list[Row]] = {device.uuid: [] for device in devices}
    known: dict[str, SliceDevice | SliceDeviceStatus] = {device.uuid: device for device in devices}
    for row in rows:
        if row.tenant.alive:
            by_device.setdefault(row.device.uuid, []).append(row)
            known[row.device.uuid] = row.device  # NVML tells the limit within a slice
    found = [_sums(known[uuid], tuple(rows)) for uuid, rows in by_device.items()]
    return sorted(found, key=lambda sums: numbers_of(sums.index))


def numbers_of(index: str) -> tuple[int, int]:
    """GPU and MIG device of an index such as `1` or `0:3`, by which devices are ordered."""
    gpu, _, mig = index.partition(":")
    return (int(gpu) if gpu.isdigit() else 0, int(mig) if mig.isdigit() else -1)


def _sums(device: SliceDevice | SliceDeviceStatus, rows: tuple[Row, ...]) -> DeviceSums:
    entitled = [row.device.entitlement for row in rows if row.device.entitlement is not None]
    utilized = [row.received for row in rows if row.received is not None]
    return DeviceSums(
        device.index, device.uuid, device.name, device.memory, rows, sum(row.limit for row in rows),
        sum(row.device.reserved for row in rows), sum(row.used or 0 for row in rows),
        sum(entitled) if entitled else None, sum(utilized) if utilized else None,
    )  # fmt: skip


def policy_text(device: SliceDeviceStatus) -> str:
    """The policy for people, whether it is enforced, and whether it is paused."""
    name = policy_of(device.policy).name + (" (not enforced)" if device.not_enforced else "")
    return f"{name}, paused" if device.paused else name


def limit_text(device: SliceDeviceStatus, size: Callable[[int], str] = short_size) -> str:
    """The limit for people; short in tables."""
    return "none" if device.limit == NO_LIMIT else size(device.limit)


def reserved_text(count: int) -> str:
    """Bytes that are reserved, for tables; `-` for none."""
    return short_size(count) if count else "-"


def used_text(tenant: SliceStatus, device: SliceDeviceStatus, size: Callable[[int], str] = short_size) -> str:
    """What is in use, short in tables; `?` where it is not known, `-` where nobody is left."""
    if not tenant.alive:
        return "-"
    return "?" if tenant.problem else size(device.used)


def use_text(tenant: SliceStatus, device: SliceDeviceStatus) -> str:
    """Percent of the limit."""
    if not tenant.alive or tenant.problem or device.limit in (0, NO_LIMIT):
        return "-"
    return f"{min(device.used * 100 // device.limit, 999)}%"


def processes_text(tenant: SliceStatus) -> str:
    """How many processes use a GPU, of all that there are."""
    return f"{len(tenant.accounts)} of {len(tenant.pids)}" if tenant.alive else "gone"


def pid_text(account: Account) -> str:
    """The number of a process on the host; `?` where it is not known."""
    return str(account.host_pid or "?")


def age_text(seconds: float) -> str:
    """`45s`, `12m`, `3h`, `9d`."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


#: The text of each column, from a row and the seconds since the epoch.
CELLS: dict[str, Callable[[Row, float], str]] = {
    "SLICE": lambda row, _: row.tenant.name,
    "DEVICE": lambda row, _: row.device.index,
    "ENTITLED": lambda row, _: percent(row.device.entitlement),
    "UTILIZED": lambda row, _: percent(row.received),
    "WAITED": lambda row, _: percent(row.had.waited if row.had else None),
    "STATE": lambda row, _: row.state,
    "LIMIT": lambda row, _: limit_text(row.device),
    "RESERVED": lambda row, _: reserved_text(row.device.reserved),
    "USED": lambda row, _: used_text(row.tenant, row.device),
    "USE": lambda row, _: use_text(row.tenant, row.device),
    "CORES": lambda row, _: f"{row.device.cores}%" if row.device.cores else "-",
    "WEIGHT": lambda row, _: str(row.device.weight),
    "POLICY": lambda row, _: policy_text(row.device)
    + (f", {row.tenant.suspension.state}" if row.tenant.suspension is not None else ""),
    "PROCESSES": lambda row, _: processes_text(row.tenant),
    "AGE": lambda row, now: age_text(now - row.tenant.entry.created),
    "CONTAINER": lambda row, _: row.tenant.origin,
}
#: Columns that say the same of all devices of a slice.
ONCE = ("SLICE", "PROCESSES", "AGE", "CONTAINER")


def cells(titles: tuple[str, ...], rows: list[Row], now: float) -> list[tuple[str, ...]]:
    """The titles, and the text of these columns of each row; what is ONCE stands in the first row of a slice."""
    found = [titles]
    for row in rows:
        found.append(
            tuple(CELLS[title](row, now) if row.first or title not in ONCE else "" for title in titles)
        )
    return found
