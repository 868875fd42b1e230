"""Plots of the measurements: each is what the reports give, and is on the page."""

from __future__ import annotations

import os

import pytest
from support import REPO
from support.plots import PLOTS, drawn, plots
from support.prose import read


@pytest.mark.parametrize("path", plots())
def test_a_plot_is_that_of_the_reports(path: str) -> None:
    assert read(path) == plots()[path], "PYTHONPATH=.:tests python3 -m support.plots"
    assert f"](../pictures/measurements/{os.path.basename(path)})" in read("docs/measurements/README.md")


def test_no_label_crosses_a_bar() -> None:
    """Labels end where bars begin, and each has the width that its letters need."""
    for _, _, _, made in PLOTS:
        assert all(len(label) * 7 < 230 for label, _ in made())
    assert 'width="360.0"' in drawn("t", ("a",), [("x", (5.0,)), ("y", (1.0,))])
    assert os.path.isdir(os.path.join(REPO, "docs/pictures/measurements"))
