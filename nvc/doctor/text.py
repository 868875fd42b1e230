"""The report for people: each problem in one line, then what was seen and what mends it."""

from __future__ import annotations

from nvc.doctor import FAILED, OK, UNKNOWN, WARNING, worst
from nvc.errors import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.doctor import Check, Finding, Result

LABELS = {OK: "ok", WARNING: "warning", FAILED: "failed", UNKNOWN: "cannot tell"}
#: Worst first, as it is read.
_READING = (FAILED, UNKNOWN, WARNING, OK)


def report(results: tuple[Result, ...], everything: bool = False) -> str:
    """The findings that are problems, with `everything` those that are none too; at the end one line of counts."""
    lines = []
    for result in results:
        problems = [finding for finding in result.findings if finding.status != OK]
        for finding in problems if not everything else problems or result.findings[:1]:
            lines += _lines(result.check.name, finding)
    lines.append(summary(results))
    return "".join(f"{line}\n" for line in lines)


def _lines(name: str, finding: Finding) -> list[str]:
    lines = [f"{LABELS[finding.status]:<11}  {name}: {one_line(finding.text)}"]
    if finding.status == OK:
        return lines
    lines += [f"    seen    {one_line(text)}" for text in finding.evidence]
    lines += [f"    run     {one_line(command)}" for command in finding.commands]
    if finding.advice:
        lines.append(f"    advice  {one_line(finding.advice)}")
    return lines


def summary(results: tuple[Result, ...]) -> str:
    """How many checks there were, and how they ended."""
    counts = {status: sum(result.status == status for result in results) for status in _READING}
    ended = ", ".join(f"{counts[status]} {LABELS[status]}" for status in _READING if counts[status])
    return f"{len(results)} checks: {ended}"


def reason(results: tuple[Result, ...]) -> str:
    """The first thing that fails, which is why what comes after it does; "" where nothing does."""
    for result in results:
        for finding in result.findings:
            if finding.status == FAILED:
                return one_line(finding.text)
    return ""


def listing(checks: tuple[Check, ...]) -> str:
    """Names and titles."""
    width = max(len(check.name) for check in checks)
    return "".join(f"{check.name:<{width}}  {check.title}\n" for check in checks)


def exit_code(results: tuple[Result, ...], strict: bool = False) -> int:
    """0 where nothing fails, 1 where something does (with `strict` a warning too), 2 where it cannot be told."""
    status = worst(result.status for result in results)
    if status == FAILED or strict and any(result.status == WARNING for result in results):
        return 1
    return 2 if status == UNKNOWN else 0
