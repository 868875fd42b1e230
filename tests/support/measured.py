"""Bounds of what is measured on a host that may be busy with other things.

A busy host makes figures worse for a moment, and a fault makes them worse each time: so a test whose figure is out
of its bounds is repeated, twice at most (setup.cfg), and the run says that it was. What else fails is not repeated.
"""

from __future__ import annotations


class Missed(AssertionError):
    """A measured figure is out of its bounds."""


def within(figure: float, low: float, high: float, *about: object) -> None:
    """Raise Missed unless the figure lies between the two; `about` is shown beside it."""
    __tracebackhide__ = True
    if not low <= figure <= high:
        raise Missed(f"{figure:.4f} is not between {low:.4f} and {high:.4f}", *about)


def near(figure: float, wanted: float, by: float, *about: object) -> None:
    """Likewise, unless it is as wanted but for so much."""
    __tracebackhide__ = True
    within(figure, wanted - by, wanted + by, *about)


def below(figure: float, high: float, *about: object) -> None:
    """Likewise, unless it is not higher than that. For shares: a busy host lets programs have less at any time."""
    __tracebackhide__ = True
    within(figure, float("-inf"), high, *about)


def above(figure: float, low: float, *about: object) -> None:
    """Likewise, unless it is not lower."""
    __tracebackhide__ = True
    within(figure, low, float("inf"), *about)
