"""Cases of one rule: `make test` tries a few of them, and `make nightly` the others too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def few(cases: Iterable[object], each: int) -> list[object]:
    """With what a test is parametrized: of `each` cases in a row, all but the first are tried at night alone.

    A tuple is the values of several names.
    """
    night = [pytest.mark.nightly]
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*those, marks=night if at % each else []) for at, those in enumerate(values)]
