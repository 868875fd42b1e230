"""The shim of a slice that moves its memory itself: what is charged, what stays, and a driver that has no room."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support import GIB, MIB, until
from support.suspended import delay
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Process, Slice

from nvc.model.slices import layout, ledger, quota
from nvc.model.slices.ledger import Account

INVALID, NOT_READY, CAPTURES, UNKNOWN = 1, 600, 900, 999


def move(slice_: Slice, what: int) -> Account:
    """Ask as nvcd does, once a process has said what it can move; its answer."""
    until(lambda: any(one.movable for one in accounts(slice_)))
    with open(slice_.path("nvc/quota"), "r+b", buffering=0) as file:
        word = quota.ask_to_move(file.fileno(), what)
    return until(lambda: next((one for one in accounts(slice_) if one.swapped == word), None))


def accounts(slice_: Slice) -> tuple[Account, ...]:
    with open(slice_.path("nvc/ledger/ledger"), "rb") as file:
        return ledger.parse(file.read(), len(slice_.uuids))


def swapping(slice_: Slice, limit: int = 2 * GIB) -> Process:
    """A process with a context in a slice of one device that swaps."""
    slice_.limit(limit)
    fd = os.open(slice_.path("nvc/quota"), os.O_RDWR)
    quota.set_swaps(fd, True)
    os.close(fd)
    return slice_.start()


def test_what_moves_and_what_stays(vgpu: Slice) -> None:
    one = swapping(vgpu)
    one.do("alloc a 200m", "alloc b 1m", "pitch c 3000 1000", "async d 64m", "alloc e 2m", "create f 32m 0 1 1")
    blocks = (200 + 4 + 2) * MIB
    before = vgpu.agree()
    for _ in range(2):
        found = move(vgpu, layout.SWAP_OUT)
        assert (found.away, found.movable, found.swap_error) == (True, blocks, 0) and found.staged >= blocks
        assert vgpu.taken() == before - blocks and vgpu.used() == before, "it counts still"
        one.send("free e")
        found = move(vgpu, layout.SWAP_IN)
        assert not found.away and one.receive() == ["0"]
        one.do("alloc e 2m")
        assert vgpu.agree() == before
    assert move(vgpu, layout.SWAP_FREE).staged == 0
    one.do("free a", "free b", "free c", "free d", "free e", "release f")


def test_the_end_of_a_context(vgpu: Slice) -> None:
    one = swapping(vgpu)
    one.do("context x 0", "alloc a 100m", "dropcontext x")
    assert vgpu.agree() <= 2 * CONTEXT
    one.do("alloc b 64m")
    assert move(vgpu, layout.SWAP_OUT).movable == 64 * MIB
    move(vgpu, layout.SWAP_IN)
    one.do("free b")


@pytest.mark.parametrize("begin", ["capture 0", "recapture g"])
@pytest.mark.parametrize("end", ["captured g", "dropstream", "dropcontext x"])
def test_a_capture_keeps_it_until_it_ends(vgpu: Slice, begin: str, end: str) -> None:
    """However it begins and ends."""
    one = swapping(vgpu)
    one.do("alloc a 64m", "context x 0", "stream s", "graph g", begin)
    found = move(vgpu, layout.SWAP_OUT)
    assert not found.away and found.swap_error == CAPTURES
    one.do(end)
    assert move(vgpu, layout.SWAP_OUT).away and not move(vgpu, layout.SWAP_IN).away
    one.do("free a")


def test_a_piece_that_does_not_leave(vgpu: Slice) -> None:
    """All come back. Who frees memory that the driver does not let go of is told so, and can free it later."""
    one = swapping(vgpu)
    one.do("alloc a 200m", "alloc b 64m", "fill a 200m", "fill b 64m")
    before = vgpu.agree()
    delay(vgpu.root, "unmap", 0)
    found = move(vgpu, layout.SWAP_OUT)
    assert (found.away, found.swap_error, found.movable) == (False, UNKNOWN, 264 * MIB)
    one.do("filled a 200m", "filled b 64m")
    assert vgpu.agree() == before
    assert one.code("free a") == UNKNOWN and vgpu.used() == before
    delay(vgpu.root, "unmap", 1)
    one.do("free a", "free b")
    assert vgpu.agree() == CONTEXT


@pytest.mark.nightly
def test_work_that_does_not_end(vgpu: Slice) -> None:
    """It is waited for 10 seconds. The program goes on then, and moves once the work has ended."""
    one = swapping(vgpu)
    one.do("alloc a 64m", "hold")
    found = move(vgpu, layout.SWAP_OUT)
    assert (found.away, found.swap_error) == (False, NOT_READY)
    one.do("alloc b 2m", "letgo")
    assert move(vgpu, layout.SWAP_OUT).away and not move(vgpu, layout.SWAP_IN).away
    one.do("free a", "free b")


def test_limits_hold(vgpu: Slice) -> None:
    one = swapping(vgpu)
    assert one.code("alloc a 3g") == OUT_OF_MEMORY
    one.do("alloc a 1g")
    assert one.code("alloc b 1g") == OUT_OF_MEMORY and vgpu.agree() == CONTEXT + GIB


def test_it_does_not_come_back_to_a_full_card(plain_slice: Callable[..., Slice]) -> None:
    slice_ = plain_slice()
    one = swapping(slice_, 1 << 40)
    one.do("alloc a 1g")
    assert move(slice_, layout.SWAP_OUT).away
    other = slice_.start()
    other.do(f"create z {other.info()[0] // (2 * MIB) * 2 * MIB + 512 * MIB} 0")  # what is away counts
    taken = slice_.taken()
    for _ in range(2):
        found = move(slice_, layout.SWAP_IN)
        assert found.away and found.swap_error == OUT_OF_MEMORY and slice_.taken() == taken
    other.do("release z")
    assert not move(slice_, layout.SWAP_IN).away
    one.do("free a")


def test_handles_for_other_processes(vgpu: Slice) -> None:
    """The driver has none for such memory."""
    one = swapping(vgpu)
    one.do("alloc a 64m", "alloc b 1m")
    assert one.code(f"ipcget a {vgpu.root}/handle") == INVALID
    one.do(f"ipcget b {vgpu.root}/handle")
