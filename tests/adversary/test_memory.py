"""Programs that try to have more memory than their slice, by the simulated driver's own count.

tests/gpu/test_adversary_memory.py runs the same programs on a real GPU.
"""

from __future__ import annotations

import pytest
from support.adversary import Look, Taker
from support.adversary_table import TAKERS
from support.vgpushim import Slice


@pytest.mark.parametrize("vgpu", ["plain", pytest.param("sanitized", marks=pytest.mark.nightly)], indirect=True)
@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.name.replace(" ", "-"))
def test_no_more_than_the_limit(vgpu: Slice, taker: Taker) -> None:
    vgpu.limit(*[taker.limit] * len(vgpu.uuids))
    look = Look(vgpu, taker)
    taker.program(vgpu, look)
    look()
