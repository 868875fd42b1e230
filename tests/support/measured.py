"""Bounds of figures; for tests whose time is not yet virtual."""

from __future__ import annotations


def within(figure: float, low: float, high: float, *about: object) -> None:
    """Fail unless the figure lies between the two; `about` is shown beside it."""
    __tracebackhide__ = True
    assert low <= figure <= high, (f"{figure:.4f} is not between {low:.4f} and {high:.4f}", *about)


def near(figure: float, wanted: float, by: float, *about: object) -> None:
    """Fail unless the figure is as wanted but for so much."""
    __tracebackhide__ = True
    within(figure, wanted - by, wanted + by, *about)


def below(figure: float, high: float, *about: object) -> None:
    """Fail unless the figure is not higher than that."""
    __tracebackhide__ = True
    within(figure, float("-inf"), high, *about)


def above(figure: float, low: float, *about: object) -> None:
    """Fail unless the figure is not lower than that."""
    __tracebackhide__ = True
    within(figure, low, float("inf"), *about)
