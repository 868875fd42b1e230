"""What the unit tests share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def built_simdriver(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated drivers are made of the stage's libraries."""
    monkeypatch.setenv("NVC_SIMDRIVER", os.path.join(stage, "lib/nvc/simdriver"))
