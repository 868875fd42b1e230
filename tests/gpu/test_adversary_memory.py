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
    """A program has an account of its own, and leaves no process."""
    slice_.new_ledger()
    first = len(slice_.processes)
    yield
    for process in slice_.processes[first:]:
        if process.process.poll() is None:
            process.kill()
    del slice_.processes[first:]
    slice_.new_ledger()
    slice_.reset()


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
