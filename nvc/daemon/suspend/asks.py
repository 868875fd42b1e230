"""Slices whose programs wait as a GPU has no room for an allocation: what they ask for, and what is answered.

The shim asks in the ledger, and waits until the quota has the answer: see native/vgpu/charge/resident.h. A tenant
writes the ledger. So what it says counts only up to what its limit leaves beyond what NVML shows that it has:
whoever lies has no more moved than whoever takes the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvc.base.value import Value
from nvc.daemon.audit.accountant import Accountant
from nvc.daemon.schedule.slice_index import IndexedSlice
from nvc.model.slices import quota


class Ask(Value):
    """A slice waits for memory of a device."""

    key: str
    uuid: str
    place: int  # of the device in its quota
    number: int  # what the answer is
    bytes: int = 0  # NVML says what it can have


class Asks:
    """Reads what is asked before NVML is, so that what NVML tells is of later."""

    def __init__(self, accountant: Accountant) -> None:
        self.accountant = accountant
        self._noted: tuple[Ask, ...] = ()

    def note(self, slices: Iterable[IndexedSlice]) -> None:
        """Read what these ask for. Raises OSError."""
        found = []
        for known in slices:
            key = known.entry.key
            for place, (device, budget) in enumerate(zip(known.devices, self.accountant.ledgers.budgets(key))):
                if budget.asked != quota.answered(known.quota, place):
                    found.append(Ask(key, device.uuid, place, budget.asked))
        self._noted = tuple(found)

    def read(self) -> dict[str, Ask]:
        """One of each slice, once NVML has told what is free; without bytes where nothing can be had."""
        balances = {(one.key, one.uuid): one for one in self.accountant.balances}
        devices = {one.uuid.lower(): one for one in self.accountant.devices}
        found: dict[str, Ask] = {}
        for ask in self._noted:
            balance, seen = balances.get((ask.key, ask.uuid)), devices.get(ask.uuid.lower())
            if balance is None or seen is None:
                continue
            accounts = self.accountant.ledgers.accounts.get(ask.key, ())
            wanted = sum(one.tentative[ask.place] for one in accounts if len(one.tentative) > ask.place)
            left = min(balance.limit, seen.memory) - max(0, balance.truth)
            found.setdefault(ask.key, ask.replace(bytes=max(0, min(wanted, left))))
        return found


def answer(slices: Mapping[str, IndexedSlice], answered: Iterable[Ask], now: int) -> None:
    """Tell slices that room is made, and what of their asks is answered. Raises OSError."""
    numbers = {(ask.key, ask.place): ask.number for ask in answered}
    for key, known in slices.items():
        for place in range(len(known.devices)):
            number = numbers.get((key, place))
            known.set_room(place, now, quota.answered(known.quota, place) if number is None else number)
