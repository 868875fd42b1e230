"""Reads a slice's ledger from the host.

The tenant can write anything to it. So its figures are never trusted: they are what the tenant claims.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.base.errors import NvcError
from nvc.base.value import Value
from nvc.model.slices import layout


class LedgerError(
    NvcError, code="NVC-2103", stage="vgpu", doctor="vgpu",
    hint="a process of the container damaged it; start the container again",
):  # fmt: skip
    """A ledger is malformed or cannot be used."""


class Account(Value):
    """The memory that one process records in the ledger."""

    slot: int
    pid: int  # in the container's pid namespace
    name: str
    used: tuple[int, ...]  # bytes, by position of the device in the quota
    host_pid: int = 0  # as /proc of the host has it; 0: not known, or not asked
    tentative: tuple[int, ...] = ()  # bytes of `used` that the driver is asked for
    swapped: int = 0  # the last question for its memory that it has answered; 0: it moves nothing itself
    swap_error: int = 0  # of CUDA, of that
    away: bool = False  # what it moves is in the host's memory
    movable: int = 0  # bytes
    staged: int = 0  # bytes of the host's memory that it keeps for that


class Budget(Value):
    """Time on one device that the processes of a slice had together; totals in nanoseconds.

    They record it themselves only where the shim paces them: see native/vgpu/time/pacer.h. Where nvcd keeps time by
    the driver, it is from the driver's log: see `QuotaDevice.kept`.
    """

    charged: int = 0  # that they used the device
    waited: int = 0  # that launches were held back, or the slice was stopped
    launches: int = 0  # 0 where the driver's log tells
    at: int = 0  # of the host's CLOCK_MONOTONIC, when it was so; 0: when it was read
    refused: int = 0  # requests for memory that did not fit, as the processes say
    asked: int = 0  # requests for room, likewise


def header() -> bytes:
    """The beginning of an empty ledger; the rest of the file is zeros."""
    return layout.LEDGER_HEADER.pack(
        layout.LEDGER_MAGIC, layout.VERSION, layout.LEDGER_SIZE, layout.SLOTS, 0, 0, 0
    )


def parse(data: bytes, devices: int) -> tuple[Account, ...]:
    """The accounts of used slots, for the first `devices` devices. Raises LedgerError.

    A slot whose lock nobody holds belongs to a dead process.
    """
    if len(data) < layout.LEDGER_SIZE:
        raise LedgerError("read ledger", "", f"{len(data)} bytes, not {layout.LEDGER_SIZE}")
    return parse_slots(data, devices)


def parse_slots(data: bytes, devices: int) -> tuple[Account, ...]:
    """The accounts of used slots, from the first `slots_size(devices)` bytes of a ledger. Raises LedgerError."""
    magic, version, size, slots, high_water, *_ = layout.LEDGER_HEADER.unpack_from(data)
    expected = (layout.LEDGER_MAGIC, layout.VERSION, layout.LEDGER_SIZE, layout.SLOTS)
    if (magic, version, size, slots) != expected or high_water > layout.SLOTS:
        raise LedgerError("read ledger", "", f"not a ledger of version {layout.VERSION}")
    if len(data) < slots_size(devices):
        raise LedgerError("read ledger", "", "cut short")
    accounts = []
    for slot in range(high_water):
        offset = layout.LEDGER_HEADER.size + slot * layout.SLOT_HEADER.size
        pid, _, _, name = layout.SLOT_HEADER.unpack_from(data, offset)
        if pid == 0:
            continue
        used, tentative = [], []
        for device in range(min(devices, layout.DEVICES)):
            place = (device * layout.SLOTS + slot) * layout.AMOUNT.size
            _, taken, asked, inherited = layout.AMOUNT.unpack_from(data, layout.AMOUNTS_OFFSET + place)
            used.append(min(taken + inherited, (1 << 63) - 1))
            tentative.append(min(taken, asked))
        text = name.partition(b"\0")[0].decode("utf-8", "replace")
        if not text.isprintable():
            text = "".join(c if c.isprintable() else "?" for c in text)
        swapped, error, away, movable, staged = layout.SWAPPED.unpack_from(data, offset + layout.SWAPPED_OFFSET)
        accounts.append(
            Account(slot, pid, text, tuple(used), 0, tuple(tentative), swapped, error, bool(away), movable, staged)
        )
    return tuple(accounts)


def is_exported(fd: int, slot: int) -> bool:
    """Whether other processes have imported memory that the process in this slot exported. Raises OSError."""
    data = os.pread(fd, layout.SHARES * layout.SHARE_SIZE, layout.SHARES_OFFSET)
    whole = len(data) - len(data) % layout.SHARE_SIZE
    shares = layout.SHARE.iter_unpack(data[:whole])
    return whole < layout.SHARES * layout.SHARE_SIZE or any(
        owner == slot + 1 and any(importers) for _, _, _, owner, _, _, importers in shares
    )


def void(fd: int, account: Account, position: int) -> None:
    """Clear an account's bytes for the device at `position` in an open ledger. Raises OSError, LedgerError."""
    header = layout.LEDGER_HEADER.size + account.slot * layout.SLOT_HEADER.size
    place = layout.AMOUNTS_OFFSET + (position * layout.SLOTS + account.slot) * layout.AMOUNT.size
    slot = os.pread(fd, layout.SLOT_HEADER.size, header)
    amount = os.pread(fd, layout.AMOUNT.size, place)
    if len(slot) < layout.SLOT_HEADER.size or len(amount) < layout.AMOUNT.size:
        raise LedgerError("change ledger", cause="cut short")
    pid, changes = layout.SLOT_HEADER.unpack(slot)[0], layout.AMOUNT.unpack(amount)[0]
    if pid != account.pid:
        cause = f"slot {account.slot} is now that of process {pid}"
        raise LedgerError("change ledger", cause=cause, hint="try again")
    os.pwrite(fd, layout.AMOUNT.pack((changes + 1) & (1 << 64) - 1, 0, 0, 0), place)


def slots_size(devices: int) -> int:
    """The size in bytes of the part of a ledger with the accounts of the first `devices` devices."""
    return layout.AMOUNTS_OFFSET + min(devices, layout.DEVICES) * layout.SLOTS * layout.AMOUNT.size


def parse_budgets(data: bytes, devices: int) -> tuple[Budget, ...]:
    """The budgets of the first `devices` devices from `data`, a ledger's bytes from layout.BUDGETS_OFFSET on.

    Raises LedgerError.
    """
    if len(data) < devices * layout.BUDGET.size:
        raise LedgerError("read ledger", "", f"no budgets of {devices} devices")
    found = []
    for device in range(devices):
        _, _, charged, waited, launches, *requests = layout.BUDGET.unpack_from(data, device * layout.BUDGET.size)
        found.append(Budget(charged, waited, launches, 0, *requests))
    return tuple(found)


def totals(accounts: tuple[Account, ...], devices: int) -> tuple[int, ...]:
    """The sum of all accounts for each device, in bytes."""
    return tuple(sum(account.used[device] for account in accounts) for device in range(devices))
