"""What is wrong with this host, or with one container, and how to mend it.

Each check looks at one thing, has a name that never changes, and returns findings: a status, one line of text, what
was seen (evidence), and a remedy, as commands wherever there are any. A check changes nothing. `catalog` lists the
checks, `examine` runs them, `Context` is what they read.
"""

from __future__ import annotations

import os
import shlex

from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from nvc.doctor.context import Context

OK, WARNING, FAILED, UNKNOWN = "ok", "warning", "failed", "unknown"
#: From harmless to bad.
ORDER = (OK, WARNING, UNKNOWN, FAILED)
AS_ROOT = "run as root to check it"


def with_systemd(*commands: str, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """`commands` where systemd runs, else `without`."""
    return commands if os.path.isdir("/run/systemd/system") else without


def aside(path: str) -> str:
    """The command that takes a file or directory out of the way and destroys nothing.

    Nobody takes it for what it was: its new name is hidden and has another ending.
    """
    directory, name = os.path.split(path)
    return f"mv --backup=numbered -T {shlex.quote(path)} {shlex.quote(f'{directory}/.{name}.aside')}"


def first(found: Iterable[str], most: int = 8) -> tuple[str, ...]:
    """The first of what was found, a line each, and how many more there are."""
    lines = tuple(found)
    return lines if len(lines) <= most else (*lines[:most], f"and {len(lines) - most} more")


class Finding(Value):
    """One thing that a check found."""

    status: str  # OK, WARNING, FAILED or UNKNOWN: it cannot be told
    text: str  # one line
    evidence: tuple[str, ...] = ()  # what was seen, a line each
    commands: tuple[str, ...] = ()  # that mend it, one after the other
    advice: str = ""  # what to do where no command does it


class Check(Value):
    """One check. `title` says what is looked at."""

    name: str
    title: str
    run: Callable[[Context], Iterable[Finding]]


class Result(Value):
    """What one check found, at least one finding."""

    check: Check
    findings: tuple[Finding, ...]

    @property
    def status(self) -> str:
        """The worst status among the findings."""
        return worst(finding.status for finding in self.findings)


class Blocked(Exception):
    """A check cannot be made before another one is well; its name is the message."""


def ok(text: str, *evidence: str) -> Finding:
    """It is as it should be."""
    return Finding(OK, text, evidence)


def warning(text: str, *evidence: str, commands: tuple[str, ...] = (), advice: str = "") -> Finding:
    """It works, but not as it should, or not for long."""
    return Finding(WARNING, text, evidence, commands, advice)


def failed(text: str, *evidence: str, commands: tuple[str, ...] = (), advice: str = "") -> Finding:
    """It does not work."""
    return Finding(FAILED, text, evidence, commands, advice)


def unknown(text: str, *evidence: str, commands: tuple[str, ...] = (), advice: str = "") -> Finding:
    """It cannot be told."""
    return Finding(UNKNOWN, text, evidence, commands, advice)


def worst(statuses: Iterable[str]) -> str:
    """The worst of several; OK for none."""
    return max(statuses, key=ORDER.index, default=OK)


def document(results: tuple[Result, ...]) -> dict[str, Any]:
    """The results for programs; the keys are documented in docs/doctor.md."""
    return {
        "schemaVersion": 1,
        "status": worst(result.status for result in results),
        "checks": [
            {
                "check": result.check.name,
                "title": result.check.title,
                "status": result.status,
                "findings": [
                    {
                        "status": finding.status,
                        "text": finding.text,
                        "evidence": list(finding.evidence),
                        "commands": list(finding.commands),
                        "advice": finding.advice or None,
                    }
                    for finding in result.findings
                ],
            }
            for result in results
        ],
    }
