"""What the index of slices says of problems that tenants can cause: not all, but a new one is always heard."""

from __future__ import annotations

import pytest

from nvc.daemon.io.seldom import MINUTE, MOST
from nvc.daemon.schedule import slice_index
from nvc.kernel import LinuxKernel


def test_no_number_of_problems_silences_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    now = 1
    monkeypatch.setattr(slice_index.registry, "base_directory", lambda: "")
    monkeypatch.setattr(slice_index.time, "monotonic_ns", lambda: now)
    index = slice_index.SliceIndex(LinuxKernel(), said.append)
    for number in range(2000):
        index.say(f"problem {number}")
        index.say(f"problem {number}")
    assert said == [f"problem {number}" for number in range(MOST)]
    for _ in range(2):
        now += MINUTE
        index.seldom.second(now)
    index.say("another one")
    assert said[-1] == "another one"
    assert f"left out: {(2000 - MOST) * 2} lines about more than {MOST} things in a minute" in said
