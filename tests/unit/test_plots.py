"""Plots of the measurements: each is what the reports give, and is on the page."""

from __future__ import annotations

import os

import pytest
from support.plots import plots
from support.prose import read


@pytest.mark.parametrize("path", plots())
def test_a_plot_is_that_of_the_reports(path: str) -> None:
    assert read(path) == plots()[path], "PYTHONPATH=.:tests python3 -m support.plots"
    assert f"](../pictures/measurements/{os.path.basename(path)})" in read("docs/measurements/README.md")
