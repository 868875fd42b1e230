"""The report for people: each problem in one line, then what was seen and what mends it."""

from __future__ import annotations

import sys
from collections import Counter
from textwrap import fill, wrap

from nvc.base.columns import fitted
from nvc.base.errors import counted, one_line
from nvc.doctor import FAILED, OK, ORDER, UNKNOWN, WARNING, Check, Finding, Result, worst

LABELS = {OK: "ok", WARNING: "warning", FAILED: "failed", UNKNOWN: "cannot tell"}
PLAIN, BOLD = "\x1b[0m", "\x1b[1m"
COLOURS = {FAILED: "\x1b[31m", UNKNOWN: "\x1b[35m", WARNING: "\x1b[33m", OK: "\x1b[32m"}


def report(
    results: tuple[Result, ...], everything: bool = False, colour: bool = False, width: int = 0
) -> str:
    """The findings that are problems, with `everything` also of checks without problems; then a line of counts.

    With `colour` the status is in colour and what to run in bold, for a terminal. Sentences are folded at `width`
    columns, 0: not at all; commands never are, so that they can be copied.
    """
    lines = []
    for result in results:
        problems = [finding for finding in result.findings if finding.status != OK]
        for finding in problems if not everything else problems or dict.fromkeys(result.findings):
            lines += _lines(result.check.name, finding, colour, width)
    lines.append(summary(results))
    return "".join(f"{line}\n" for line in lines)


def _lines(name: str, finding: Finding, colour: bool, width: int) -> list[str]:
    label = f"{LABELS[finding.status]:<11}"
    first, *lines = _folded(f"{label}  ", f"{name}: {one_line(finding.text)}", width)
    if colour:
        first = f"{COLOURS[finding.status]}{label}{PLAIN}{first[len(label) :]}"
    lines.insert(0, first)
    if finding.status == OK:
        return lines
    bold, plain = (BOLD, PLAIN) if colour else ("", "")
    for text in finding.evidence:
        lines += _folded("    seen    ", one_line(text), width)
    lines += [f"    run     {bold}{one_line(command)}{plain}" for command in finding.commands]
    if finding.advice:
        lines += _folded("    advice  ", one_line(finding.advice), width)
    return lines


def _folded(head: str, text: str, width: int) -> list[str]:
    """`text` behind `head` in lines of at most `width` columns; words stay whole."""
    return wrap(
        text, max(width, 40) if width else sys.maxsize, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def table(results: tuple[Result, ...], width: int = 0) -> str:
    """One row for each check with its worst finding, in at most `width` columns; 0: any number."""
    rows: list[tuple[str, ...]] = [("STATUS", "CHECK", "FINDING")]
    for result in results:
        found = next(item for item in result.findings if item.status == result.status)
        rows.append((LABELS[result.status], result.check.name, one_line(found.text)))
    return fitted(rows, width)


def summary(results: tuple[Result, ...]) -> str:
    """How many checks there were, and how they ended."""
    counts = Counter(result.status for result in results)
    ended = ", ".join(f"{counts[status]} {LABELS[status]}" for status in reversed(ORDER) if counts[status])
    return f"{counted(len(results), 'check')}: {ended}"


def reason(results: tuple[Result, ...]) -> str:
    """The first thing that fails, which is why what comes after it does; "" where nothing does."""
    failures = (one for result in results for one in result.findings if one.status == FAILED)
    return next((one_line(one.text) for one in failures), "")


def listing(checks: tuple[Check, ...]) -> str:
    """Names and titles, which are folded at 80 columns."""
    indent = max(len(check.name) for check in checks) + 2
    return "".join(
        fill(check.title, 80, initial_indent=check.name.ljust(indent), subsequent_indent=" " * indent) + "\n"
        for check in checks
    )


def exit_code(results: tuple[Result, ...], strict: bool = False) -> int:
    """0 where nothing fails, 1 where something does (with `strict` a warning too), 2 where it cannot be told."""
    status = worst(result.status for result in results)
    if status == FAILED or strict and any(result.status == WARNING for result in results):
        return 1
    return 2 if status == UNKNOWN else 0
