"""Programs that try to have more memory than their slice, by the simulated driver's own count.

tests/gpu/test_adversary_memory.py runs the same programs on a real GPU.
"""

from __future__ import annotations

import pytest
from support.adversary import Look, Taker
from support.adversary_table import TAKERS
from support.vgpushim import Slice

#: Each program, and again at night under sanitizers, which need address space themselves.
CASES = [
    pytest.param(build, taker, id=f"{taker.name.replace(' ', '-')}-{build}", marks=marks)
    for taker in TAKERS
    for build, marks in (("plain", ()), ("sanitized", pytest.mark.nightly))
    if build == "plain" or taker.name != "no address space"
]


@pytest.mark.parametrize(("vgpu", "taker"), CASES, indirect=["vgpu"])
def test_no_more_than_the_limit(vgpu: Slice, taker: Taker) -> None:
    vgpu.limit(*[taker.limit] * len(vgpu.uuids))
    look = Look(vgpu, taker)
    taker.program(vgpu, look)
    look()
