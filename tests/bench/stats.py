"""Means with the interval that holds the true one in 95 of 100 cases."""

from __future__ import annotations

import statistics

#: Student's t for 95 %, by degrees of freedom from 1 on.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
           2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060)  # fmt: skip


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half the width of its interval; infinite for a single value."""
    if len(values) < 2:
        return values[0], float("inf")
    degrees = len(values) - 1
    t = STUDENT[degrees - 1] if degrees <= len(STUDENT) else 1.96
    return statistics.mean(values), t * statistics.stdev(values) / len(values) ** 0.5


def ratio(parts: list[float], wholes: list[float]) -> str:
    """How much more or less than the whole a part is, in percent, of pairs measured one after the other."""
    mean, half = interval([100 * (part / whole - 1) for part, whole in zip(parts, wholes)])
    return f"{mean:+.2f} % (± {half:.2f}, {min(len(parts), len(wholes))} pairs)"
