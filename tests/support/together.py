"""What tenants of one GPU got side by side: from the steps of single runs to rows, goals and a report. Pure.

A case is a load, a way to share and the tenants' weights. It is run several times; a row has the medians.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

ALONE = "native"  # the way without nvc; with one tenant, what all else is compared with
WAITS = ("decode", "eager")  # kinds whose host waits for each step
TENANTS_OF_NVCD = 16


class Case(NamedTuple):
    """What is run."""

    load: str
    way: str
    weights: tuple[int, ...]  # of the tenants, one each

    def __str__(self) -> str:
        weights = "" if set(self.weights) == {1} else f" {':'.join(map(str, self.weights))}"
        return f"{self.load}, {self.way}{weights}, {len(self.weights)}"


class Had(NamedTuple):
    """What one tenant did in the window that is the same for all."""

    kind: str
    steps: tuple[float, ...]  # milliseconds of each


class Sample(NamedTuple):
    """One run of a case."""

    seconds: float
    tenants: tuple[Had, ...]
    joules: float | None = None  # of the whole GPU in the window
    nvcd: float | None = None  # percent of a core, its helpers included


class Row(NamedTuple):
    """A case, measured."""

    case: Case
    runs: int
    rates: tuple[float, ...]  # steps a second of each tenant
    speed: float | None  # sum of what each reached of what it reaches alone
    p50: float  # milliseconds of a step, of the tenants that wait for each, if there are some
    p99: float
    joules: float | None  # for a step
    nvcd: float | None

    @property
    def total(self) -> float:
        """Steps a second of all."""
        return sum(self.rates)

    @property
    def points(self) -> float:
        """How far the tenant that is farthest off is from its weight's part of the steps, in percentage points."""
        if not self.total:
            return 100.0
        whole = sum(self.case.weights)
        pairs = zip(self.rates, self.case.weights)
        return max(abs(100 * rate / self.total - 100 * weight / whole) for rate, weight in pairs)


class Goal(NamedTuple):
    """What is wanted of a figure, and the figure. Without one, `why` says why."""

    text: str
    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = "not measured"

    @property
    def kept(self) -> bool | None:
        if self.value is None:
            return None
        return (self.low is None or self.value >= self.low) and (
            self.high is None or self.value <= self.high
        )

    @property
    def bound(self) -> str:
        return f"at least {self.low:g}" if self.low is not None else f"at most {self.high:g}"


def percentile(values: Sequence[float], part: float) -> float:
    """The least value that so many percent of all do not exceed. Raises ValueError if there are none."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(len(values) * part / 100) - 1)]


def median_of(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def speeds_alone(samples: Mapping[Case, Sequence[Sample]]) -> dict[str, float]:
    """Steps a second of each kind of step that was measured alone, without nvc."""
    return {
        case.load: statistics.median(len(one.tenants[0].steps) / one.seconds for one in found)
        for case, found in samples.items()
        if case.way == ALONE and len(case.weights) == 1 and found
    }


def waited(sample: Sample) -> list[float]:
    """The steps whose latency counts."""
    steps = [step for one in sample.tenants if one.kind in WAITS for step in one.steps]
    return steps or [step for one in sample.tenants for step in one.steps]


def row(case: Case, samples: Sequence[Sample], alone: Mapping[str, float]) -> Row:
    """The medians of a case's runs. A tenant that ended no step has a rate of 0; its latency is the window."""
    rates = tuple(
        statistics.median(len(one.tenants[at].steps) / one.seconds for one in samples)
        for at in range(len(case.weights))
    )
    kinds = [one.kind for one in samples[0].tenants]
    known = all(alone.get(kind) for kind in kinds)
    steps = [waited(one) or [1000 * one.seconds] for one in samples]
    counts = [sum(len(had.steps) for had in one.tenants) for one in samples]
    return Row(
        case=case,
        runs=len(samples),
        rates=rates,
        speed=sum(rate / alone[kind] for rate, kind in zip(rates, kinds)) if known else None,
        p50=statistics.median(percentile(one, 50) for one in steps),
        p99=statistics.median(percentile(one, 99) for one in steps),
        joules=median_of(
            one.joules / count if one.joules is not None and count else None
            for one, count in zip(samples, counts)
        ),
        nvcd=median_of(one.nvcd for one in samples),
    )


def rows(samples: Mapping[Case, Sequence[Sample]]) -> dict[Case, Row]:
    """All cases that were run."""
    alone = speeds_alone(samples)
    return {case: row(case, found, alone) for case, found in samples.items() if found}


def alternation(alone: Row, count: int) -> Row:
    """Computed: tenants whose hosts wait for each step take turns of one step, and changes take no time."""
    case = Case(alone.case.load, "strict alternation (computed)", (1,) * count)
    return Row(
        case,
        0,
        (alone.total / count,) * count,
        alone.speed,
        count * alone.p50,
        count * alone.p99,
        None,
        None,
    )


def equal(way: str, count: int, load: str = "decode") -> Case:
    """Tenants of one weight."""
    return Case(load, way, (1,) * count)


def goals(found: Mapping[Case, Row]) -> list[Goal]:
    """What is wanted, of decode loops."""

    def ratio(
        text: str, field: str, one: Case, other: Case, low: float | None = None, high: float | None = None
    ) -> Goal:
        if one not in found or other not in found:
            missing = " and ".join(f"`{case}`" for case in (one, other) if case not in found)
            return Goal(text, None, low, high, f"not measured: {missing}")
        whole = float(getattr(found[other], field))
        return Goal(text, getattr(found[one], field) / whole if whole else None, low, high)

    def figure(text: str, field: str, case: Case, high: float) -> Goal:
        value = getattr(found[case], field) if case in found else None
        return Goal(text, value, None, high, f"not measured: `{case}`")

    made = []
    for count in (2, 4):
        pair = equal("concurrent", count), equal("mps", count)
        made += [
            ratio(f"`concurrent` / one MPS server, {count}: steps", "total", *pair, low=0.98),
            ratio(f"`concurrent` / one MPS server, {count}: p99", "p99", *pair, high=1.15),
        ]
    uneven = Case("decode", "concurrent", (3, 1))
    made += [
        figure("`concurrent` 3:1: points off", "points", uneven, high=5),
        ratio("`concurrent` 3:1 / native: steps", "total", uneven, equal(ALONE, 2), low=1.1),
    ]
    for count in (2, 4):
        beside, pair = equal("weight", count), (equal("weight", count), equal(ALONE, count))
        made += [
            beside_alternation(found.get(beside), found.get(equal(ALONE, 1)), count),
            ratio(f"`weight` / native, {count}: steps", "total", *pair, low=0.98),
        ]
    eight = Case("decode", "weight", EIGHT)
    made += [figure("`weight` 1 to 8, 8: points off", "points", eight, high=2), cost_of_nvcd(found)]
    return made


def beside_alternation(beside: Row | None, alone: Row | None, count: int) -> Goal:
    """The latency of turns, as a multiple of what it is where nobody waits for more than one step of each other."""
    value = beside.p99 / alternation(alone, count).p99 if beside and alone else None
    why = f"not measured: `{equal('weight', count)}`, or one alone"
    return Goal(f"`weight` / strict alternation, {count}: p99", value, None, 1.15, why)


def cost_of_nvcd(found: Mapping[Case, Row]) -> Goal:
    """What the daemon may cost."""
    case = equal("weight", TENANTS_OF_NVCD)
    one = found.get(case)
    text = f"nvcd, {TENANTS_OF_NVCD}: percent of a core"
    return Goal(text, one.nvcd if one else None, None, 2, f"not measured: `{case}`")


EIGHT = (1, 2, 3, 4, 5, 6, 7, 8)


def shown(value: float | None, digits: int = 1) -> str:
    """A figure of a table."""
    return "-" if value is None else f"{value:.{digits}f}"


def table_of_goals(made: Sequence[Goal]) -> list[str]:
    """What was wanted and what was got."""
    lines = ["| goal | wanted | got | |", "| --- | --- | --- | --- |"]
    words = {True: "kept", False: "MISSED"}
    for goal in made:
        got = shown(goal.value, 3) if goal.value is not None else goal.why
        word = words[goal.kept] if goal.kept is not None else ""
        lines.append(f"| {goal.text} | {goal.bound} | {got} | {word} |")
    return lines


def table_of_rows(found: Iterable[Row]) -> list[str]:
    """All cases that were measured."""
    names = "tenants, way|steps/s in all|of alone|each|p50 ms|p99 ms|J a step|nvcd %|runs".split("|")
    lines = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    for one in found:
        case = one.case
        way = case.way if set(case.weights) == {1} else f"{case.way} {':'.join(map(str, case.weights))}"
        each = " ".join(f"{rate:.1f}" for rate in one.rates)
        cells = (
            f"{len(case.weights)}, {way}", f"{one.total:.1f}", shown(one.speed, 3), each, f"{one.p50:.2f}",
            f"{one.p99:.2f}", shown(one.joules, 3), shown(one.nvcd, 2), f"{one.runs or '-'}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def report(
    about: Iterable[tuple[str, str]],
    found: Mapping[Case, Row],
    not_run: Sequence[tuple[str, str]],
) -> str:
    """The whole, in Markdown. `not_run`: a case, and why."""
    lines = ["# Tenants side by side", "", "| what | value |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in about]
    lines += ["", "## Goals", "", *table_of_goals(goals(found))]
    for load in dict.fromkeys(case.load for case in found):
        of_load = [one for case, one in found.items() if case.load == load]
        alone = found.get(equal(ALONE, 1, load))
        if alone and load in WAITS:
            counts = sorted({len(one.case.weights) for one in of_load} - {1})
            of_load += [alternation(alone, count) for count in counts]
        lines += ["", f"## {load}", "", *table_of_rows(of_load)]
    lines += ["", "## Not run", ""]
    lines += [f"- {name}: {why}" for name, why in not_run] or ["Nothing was left out."]
    return "\n".join(lines) + "\n"
