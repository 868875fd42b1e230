"""What is compiled for tests is made by one process at a time, and waits for nothing else."""

from __future__ import annotations

import fcntl
import os

import pytest
from support import builds


def test_a_build_waits_for_the_same_alone(scratch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "_KEPT", scratch)
    seen: list[str] = []

    def build(directory: str) -> str:
        seen.append(directory)
        with open(os.path.join(scratch, ".lock-one"), encoding="ascii") as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "made"

    with builds.alone(), builds.alone("-another"):
        assert [builds.kept("one", build) for _ in range(2)] == ["made"] * 2
    assert seen == [os.path.join(scratch, "one")]
