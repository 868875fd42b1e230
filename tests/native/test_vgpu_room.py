"""A shim whose driver has no room for what the slice may have, while nvcd moves others for that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from support import GIB, MIB, until
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Process, Slice

from nvc.kernel.clocks import host_monotonic
from nvc.model.slices import layout, ledger, quota

PAGE = 2 * MIB
#: What needs so much of the device, that is asked for and not there yet.
WAYS = {
    "alloc a 1g": GIB,
    "alloc a 1k": PAGE,
    "pitch a 1m 1k": GIB,
    "create a 1g 0": GIB,
    "async a 1g": GIB,
    "array a 8192 8192": GIB,
    "context a 0": CONTEXT,
}


def say(slice_: Slice, seconds: float, answered: int) -> None:
    """As nvcd does: for how long it makes room, and what it has answered."""
    at = host_monotonic(time.monotonic_ns()) + int(seconds * 1e9) - layout.ROOM_FOR
    with open(slice_.path("nvc/quota"), "r+b", buffering=0) as file:
        quota.set_room(file.fileno(), 0, at, answered)


def asked(slice_: Slice) -> tuple[int, int]:
    """How often room was asked for, and bytes that the driver was asked for, as nvcd sees them."""
    with open(slice_.path("nvc/ledger/ledger"), "rb") as file:
        data = file.read()
    waiting = sum(account.tentative[0] for account in ledger.parse(data, 1))
    return ledger.parse_budgets(data[layout.BUDGETS_OFFSET :], 1)[0].asked, waiting


def full(slice_: Slice, left: int, programs: int = 1) -> list[Process]:
    """Programs with a context, and one that has all but `left` of the device."""
    slice_.limit(1 << 40)
    other, *others = (slice_.start() for _ in range(1 + programs))
    other.do(f"alloc z {(other.info()[0] - left) // PAGE * PAGE}")
    return [other, *others]


@pytest.mark.parametrize("way", WAYS)
def test_it_waits_for_room(plain_slice: Callable[..., Slice], way: str) -> None:
    slice_ = plain_slice()
    other, one = full(slice_, 0)
    assert one.code(way) == OUT_OF_MEMORY and asked(slice_) == (0, 0), "nvcd does not move anybody"
    say(slice_, 60, 0)
    one.send(way)
    until(lambda: asked(slice_) == (1, WAYS[way]))
    other.do("free z")
    say(slice_, 60, 1)
    assert one.receive()[0] == "0"
    assert asked(slice_) == (1, 0) and slice_.used() == slice_.taken()


def test_a_first_context_waits_for_room(plain_slice: Callable[..., Slice]) -> None:
    slice_ = plain_slice()
    other, _ = full(slice_, 100 * MIB)
    say(slice_, 60, 0)
    one = slice_.process().do("init")
    one.send("primary 0")
    until(lambda: asked(slice_) == (1, CONTEXT))
    other.do("free z")
    say(slice_, 60, 1)
    assert one.receive()[0] == "0"
    assert slice_.agree() == 3 * CONTEXT


def test_no_room_is_the_same_error(plain_slice: Callable[..., Slice]) -> None:
    slice_ = plain_slice()
    _, one, two = full(slice_, 0, 2)
    say(slice_, 60, 0)
    before = slice_.taken()
    one.send("alloc a 1g")
    until(lambda: asked(slice_)[0] == 1)
    two.send("alloc a 2g")
    until(lambda: asked(slice_) == (2, 3 * GIB))
    say(slice_, 60, 2)
    assert one.receive()[0] == two.receive()[0] == str(OUT_OF_MEMORY)
    assert slice_.taken() == slice_.used() == before
    one.send("alloc a 1g")
    until(lambda: asked(slice_) == (3, GIB))
    say(slice_, 0.2, 2)  # it has ended
    assert one.receive()[0] == str(OUT_OF_MEMORY)
    one.kill()
    assert slice_.used() == slice_.taken()


def test_beyond_its_limit_it_asks_nobody(plain_slice: Callable[..., Slice]) -> None:
    slice_ = plain_slice()
    one = slice_.start()
    say(slice_, 60, 0)
    assert one.code("alloc a 4g") == OUT_OF_MEMORY and asked(slice_) == (0, 0)


def test_killed_while_it_waits(plain_slice: Callable[..., Slice]) -> None:
    """What it asked for counts no longer."""
    slice_ = plain_slice()
    _, one = full(slice_, 0)
    say(slice_, 60, 0)
    one.send("alloc a 1g")
    until(lambda: asked(slice_) == (1, GIB))
    one.kill()
    assert slice_.used() == slice_.taken()
    assert os.path.exists(slice_.path("nvc/ledger/ledger"))
