"""A program of the catalogue under nvcd beside another tenant, in virtual time: how to start one; both go on."""

from __future__ import annotations

import pytest
from support.beside import Tenants
from support.nightly import few


@pytest.mark.parametrize("name", few(("held-events", "queue", "long-behind-many", "processes", "honest"), 3))
def test_both_go_on(tenants: Tenants, take_time: str, work: str, name: str) -> None:
    found = tenants.beside(work, [take_time, name, 1000, 1000], 50, 2)
    assert found.share > 0.05 and found.other > 0.05
