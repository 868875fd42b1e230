"""Whose a process is: a slice is in the registry before its container sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.daemon.time import owners as module
from nvc.daemon.time.owners import LOOKS, STRANGER, Owners

ENTRY: Any = SimpleNamespace(key="a-slice")
HERE = os.getpid()


class Looks:
    """What each look at the process finds; the last one for ever."""

    def __init__(self) -> None:
        self.found: list[Any] = [None]
        self.count = 0

    def __call__(self, *_: object) -> Any:
        self.count += 1
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    made = Looks()
    monkeypatch.setattr(module, "slice_of", made)
    yield made


@pytest.fixture
def owners(looks: Looks) -> Owners:
    kernel: Any = None
    return Owners(kernel, lambda: [ENTRY], lambda said: pytest.fail(said))


def test_who_sees_the_slice_a_moment_later_is_in_it(owners: Owners, looks: Looks) -> None:
    looks.found = [None, ENTRY]
    assert owners.of([HERE]) == {HERE: STRANGER}
    owners.doubt()
    assert owners.of([HERE]) == {HERE: "a-slice"}
    owners.doubt()
    assert owners.of([HERE]) == {HERE: "a-slice"} and looks.count == 2


def test_a_stranger_is_looked_at_a_few_times(owners: Owners, looks: Looks) -> None:
    for _ in range(LOOKS + 5):
        assert owners.of([HERE]) == owners.of([HERE]) == {HERE: STRANGER}
        owners.doubt()
    assert looks.count == 1 + LOOKS
