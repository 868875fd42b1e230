"""What is fetched for tests and packages is tried again: the network may fail for a moment."""

from __future__ import annotations

import os

import pytest
from support import REPO


@pytest.mark.parametrize("script", [".ci/run", "packaging/setup"])
def test_scripts_try_again_too(script: str) -> None:
    with open(os.path.join(REPO, script), encoding="utf-8") as text:
        runs = [line.strip() for line in text if "apt-get -" in line or "apt-get update" in line]
    assert runs and all("Acquire::Retries" in line for line in runs), runs
