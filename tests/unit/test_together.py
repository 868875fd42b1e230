"""What `bench together` says of steps that were measured: rows, goals and the report."""

from __future__ import annotations

from support.together import (
    EIGHT,
    Case,
    Had,
    Sample,
    equal,
    goals,
    report,
    rows,
)


def sample(*steps: int, ms: float = 2.0, kinds: tuple[str, ...] = ("decode",), **more: float) -> Sample:
    """A second in which each tenant ended so many steps of so many milliseconds."""
    had = tuple(Had(kinds[at % len(kinds)], (ms,) * count) for at, count in enumerate(steps))
    return Sample(1.0, had, **more)


def got(samples: dict[Case, list[Sample]], text: str) -> object:
    """The value of the goal of that name, and whether it was kept."""
    (goal,) = [one for one in goals(rows(samples)) if one.text == text]
    return (round(goal.value, 3) if goal.value is not None else goal.why), goal.kept


def test_a_row_has_the_medians_of_its_runs() -> None:
    case = equal("weight", 2)
    runs = [
        sample(100, 200, ms=4, joules=30, nvcd=0.5),
        sample(120, 180, ms=5, joules=60, nvcd=0.7),
        sample(50, 40, ms=9, joules=90, nvcd=0.6),
    ]
    (one,) = rows({case: runs}).values()
    assert (one.rates, one.total, one.p50, one.p99, one.runs) == ((100, 180), 280, 5, 5, 3)
    assert (one.joules, one.nvcd) == (0.2, 0.6)
    assert one.speed is None  # nothing was measured alone


def test_a_mix_is_measured_by_what_each_reaches_alone_and_its_latency_by_those_that_wait() -> None:
    mix = Case("mix", "mps", (1, 1))
    both = Sample(1.0, (Had("decode", (3.0,) * 250), Had("train", (20.0,) * 30)))
    found = rows({equal("native", 1): [sample(500)], equal("native", 1, "train"): [sample(60)], mix: [both]})
    assert (found[mix].speed, found[mix].p99) == (1.0, 3)


def test_goals_compare_one_run() -> None:
    samples = {
        equal("native", 1): [sample(500)],
        equal("native", 2): [sample(230, 230, ms=4.3)],
        equal("mps", 2): [sample(285, 285, ms=3.6)],
        equal("concurrent", 2): [sample(280, 280, ms=3.8)],
        equal("weight", 2): [sample(225, 225, ms=4.8)],
        Case("decode", "concurrent", (3, 1)): [sample(340, 140)],
        Case("decode", "weight", EIGHT): [sample(*(11 * weight for weight in EIGHT))],
    }
    assert got(samples, "`concurrent` / one MPS server, 2: steps") == (0.982, True)
    assert got(samples, "`concurrent` / one MPS server, 2: p99") == (1.056, True)
    assert got(samples, "`weight` / strict alternation, 2: p99") == (1.2, False)
    assert got(samples, "`weight` / native, 2: steps") == (0.978, False)
    assert got(samples, "`concurrent` 3:1: points off") == (4.167, True)
    assert got(samples, "`concurrent` 3:1 / native: steps") == (1.043, False)
    assert got(samples, "`weight` 1 to 8, 8: points off") == (0, True)
    assert got(samples, "`concurrent` / one MPS server, 4: steps")[1] is None  # type: ignore[index]


def test_the_report_says_what_did_not_run() -> None:
    samples = {equal("native", 1): [sample(500)], equal("weight", 2): [sample(225, 225, ms=4.4)]}
    text = report([("GPU", "one")], rows(samples), [("group `peer`", "not asked for")])
    assert "| 2, weight | 450.0 | 0.900 | 225.0 225.0 | 4.40 | 4.40 | - | - | 1 |" in text
    assert "| 2, strict alternation (computed) | 500.0 |" in text
    assert (
        "- group `peer`: not asked for" in text
        and "| `weight` / native, 2: steps | at least 0.98 | not" in text
    )
