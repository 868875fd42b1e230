"""What slices ask for on a full GPU, which tenants write, and what nvcd makes of it."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.daemon.suspend.asks import Asks, answer
from nvc.model.slices import layout, quota
from nvc.model.slices.ledger import Account, Budget

GIB = 1 << 30
UUID = "GPU-00000000-0000-0000-0000-00000000000a"
HUGE = (1 << 63) - 1


class Known:
    """A slice of 8 GiB of a GPU of 16 GiB."""

    def __init__(self, path: str) -> None:
        self.entry = SimpleNamespace(key="a")
        self.devices = (quota.QuotaDevice(UUID, 8 * GIB),)
        self.quota = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        quota.write(self.quota, self.devices)

    def set_room(self, number: int, at: int, answered: int) -> None:
        quota.set_room(self.quota, number, at, answered)


def world(asked: int, tentative: tuple[int, ...], truth: int = GIB) -> Any:
    return SimpleNamespace(
        balances=(SimpleNamespace(key="a", uuid=UUID, limit=8 * GIB, truth=truth),),
        devices=(SimpleNamespace(uuid=UUID.upper(), memory=16 * GIB),),
        ledgers=SimpleNamespace(
            budgets=lambda key: (Budget(asked=asked),),
            accounts={"a": tuple(Account(slot, 7, "x", (0,), 0, (each,)) for slot, each in enumerate(tentative))},
        ),
    )


@pytest.fixture
def known(scratch: str) -> Any:
    return Known(f"{scratch}/quota")


def test_all_that_its_processes_wait_for(known: Any) -> None:
    asks = Asks(world(2, (GIB, 0, 2 * GIB)))
    asks.note([known])
    (ask,) = asks.read().values()
    assert (ask.key, ask.uuid, ask.number, ask.bytes) == ("a", UUID, 2, 3 * GIB)
    answer({"a": known}, [ask], 5)
    (told,) = quota.read(known.quota)
    assert (told.answered, told.room_until) == (2, 5 + layout.ROOM_FOR)
    asks.note([known])
    assert not asks.read(), "it is answered"
    answer({"a": known}, [], 9)
    assert quota.read(known.quota)[0].answered == 2


@pytest.mark.parametrize("truth, most", [(GIB, 7 * GIB), (-1, 8 * GIB), (8 * GIB, 0), (20 * GIB, 0)])
def test_who_lies_gets_no_more_than_its_limit(known: Any, truth: int, most: int) -> None:
    asks = Asks(world((1 << 64) - 1, (HUGE,) * layout.SLOTS, truth))
    asks.note([known])
    (ask,) = asks.read().values()
    assert ask.bytes == most
    answer({"a": known}, [ask], time.monotonic_ns())
    assert quota.answered(known.quota, 0) == (1 << 64) - 1


def test_a_ledger_that_cannot_be_read(known: Any) -> None:
    seen = world(1, (GIB,))
    seen.ledgers.budgets = lambda key: ()
    asks = Asks(seen)
    asks.note([known])
    assert not asks.read()
