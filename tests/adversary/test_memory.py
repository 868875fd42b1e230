"""Programs that try to have more memory than their slice, by the simulated driver's own count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.adversary import Taker
from support.vgpushim import CONTEXT, Process, Slice

Look = Callable[[], None]


def attempt(process: Process, *commands: str) -> list[int]:
    """The driver's answers; a refusal ends nothing."""
    return [process.code(command) for command in commands]


def primary_context_between_two_threads(slice_: Slice, look: Look) -> None:
    process = slice_.process().do("init", "handovers 5000")
    look()
    assert slice_.agree() == CONTEXT
    process.do("leave 0")
    assert slice_.agree() == 0


TAKERS = (Taker("primary context between two threads", primary_context_between_two_threads),)


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.name.replace(" ", "-"))
def test_no_more_than_the_limit(vgpu: Slice, taker: Taker) -> None:
    vgpu.limit(*[taker.limit] * len(vgpu.uuids))

    def look() -> None:
        for device in range(len(vgpu.uuids)):
            taken = vgpu.taken(device)
            assert taken <= taker.limit + taker.slack, (device, taken)
            assert taken <= vgpu.used(device) + taker.slack, (device, taken)

    taker.program(vgpu, look)
    look()
