"""Programs that try to have more memory than their slice: what NVML says that they have, from outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import MIB
from support.adversary import Look, Taker
from support.adversary_table import TAKERS, Note
from support.realslice import RealSlice

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def own(slice_: RealSlice) -> Iterator[None]:
    """Every program has a new ledger, and leaves no process."""
    slice_.new_ledger()
    with slice_.without_leftovers():
        yield
    slice_.new_ledger()


@pytest.mark.parametrize(
    "taker", [one for one in TAKERS if one.gpu], ids=lambda one: one.name.replace(" ", "-")
)
def test_adversary_memory(slice_: RealSlice, taker: Taker, note: Note) -> None:
    slice_.limit(taker.limit, context_overhead=slice_.context)
    look = Look(slice_, taker, books=False)
    try:
        taker.program(slice_, look)
        look()
    finally:
        note(taker.name, "memory", f"{look.most / MIB:.0f} of {taker.limit // MIB} MiB")
