"""What is wrong with this host, or with one container, and how to mend it.

A check looks at one thing and has a name that never changes. One function gathers its facts; its rows say what each
fact means: the first row that fits gives the finding. A check changes nothing. `catalog` lists the checks,
`examine` runs them, `Context` is what they read.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nvc.base.errors import NvcError
from nvc.kernel.apart import PATIENCE, apart

if TYPE_CHECKING:
    from nvc.doctor.context import Context

OK, WARNING, FAILED, UNKNOWN = "ok", "warning", "failed", "unknown"
#: From harmless to bad.
ORDER = (OK, WARNING, UNKNOWN, FAILED)
AS_ROOT = "run as root to check it"


class Fact(SimpleNamespace):
    """What was found, by the names that rows use; what was not gathered is empty.

    Its `seen`, `run` and `advice` follow those of the row.
    """

    def __getattr__(self, name: str) -> Any:
        return ""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


@dataclass(frozen=True)
class Row:
    """What a check says of a fact for which `when` holds; texts name parts of the fact as `{name}`."""

    status: str  # OK, WARNING, FAILED or UNKNOWN: it cannot be told
    text: str  # one line
    when: str | Callable[[Any], object] = ""  # the part of the fact that is there, or a test; "": any fact
    seen: tuple[str, ...] = ()  # evidence, a line each
    run: tuple[str, ...] = ()  # commands that mend it, one after the other
    advice: str = ""  # what to do where no command does it

    def fits(self, fact: Fact) -> bool:
        """Whether it says something of this fact."""
        return bool(self.when(fact) if callable(self.when) else not self.when or fact[self.when])

    def of(self, fact: Fact, advice: str = "") -> Finding:
        """The finding for this fact; `advice` is that of rows which have none."""
        seen = *(line.format_map(fact) for line in self.seen), *fact.seen
        run = () if self.status == OK else (*(line.format_map(fact) for line in self.run), *fact.run)
        own = self.advice or ("" if self.status == OK else advice)
        advice = "; ".join(filter(None, (own.format_map(fact), fact.advice)))
        return Finding(self.status, self.text.format_map(fact), seen, run, advice)


@dataclass(frozen=True)
class Finding:
    """One thing that a check found; the fields are those of a row."""

    status: str
    text: str
    evidence: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class Check:
    """One check. `title` says what is looked at, `advice` what to do where a row does not."""

    name: str
    title: str
    facts: Callable[[Context], Iterable[Fact]]
    rows: tuple[Row, ...] = ()
    advice: str = ""

    def run(self, context: Context) -> Iterator[Finding]:
        """What the rows say of the facts. Raises whatever keeps the facts from being gathered."""
        for fact in self.facts(context):
            row = next((row for row in self.rows if row.fits(fact)), None)
            if row is not None:
                yield row.of(fact, self.advice)


@dataclass(frozen=True)
class Result:
    """What one check found, at least one finding."""

    check: Check
    findings: tuple[Finding, ...]

    @property
    def status(self) -> str:
        """The worst status among the findings."""
        return worst(finding.status for finding in self.findings)


class Blocked(Exception):
    """A check cannot be made before another one is well; its name is the message."""


def examine(context: Context, checks: tuple[Check, ...]) -> tuple[Result, ...]:
    """What each check finds. None of them can fail: what keeps one from looking is its finding.

    A child makes those of a container. Where a file system there does not answer, it makes no further ones.
    """
    made = (_findings(context, check) for check in checks)
    if context.container is None:
        return tuple(map(Result, checks, made))
    found: list[tuple[Finding, ...]] = []
    try:
        found += apart(lambda: made, context.options.timeout + PATIENCE)
    except TimeoutError as error:
        found += [(_unread(error, "the container"),)] * (len(checks) - len(found))
    return tuple(map(Result, checks, found))


def _findings(context: Context, check: Check) -> tuple[Finding, ...]:
    found: list[Finding] = []
    try:
        found += check.run(context)
    except Blocked as other:
        found.append(Finding(UNKNOWN, f"not checked: first mend {other}"))
    except PermissionError as error:
        text = f"{error.filename or 'this'} cannot be read: permission denied"
        found.append(Finding(UNKNOWN, text, advice=AS_ROOT))
    except OSError as error:
        found.append(_unread(error, check.title))
    except NvcError as error:
        found.append(Finding(UNKNOWN, f"cannot be checked: {error}", advice=error.hint))
    except Exception as error:  # a check that is wrong must not keep the others from being made
        text = f"this check has a bug: {type(error).__name__}: {error}"
        found.append(Finding(UNKNOWN, text, advice="report it as README.md says, with --bundle"))
    return tuple(found) or (Finding(OK, f"{check.title}: no problem found"),)


def _unread(error: OSError, what: str) -> Finding:
    cause = (error.strerror or str(error)).lower()
    return Finding(UNKNOWN, f"cannot be checked: {error.filename or what}: {cause}")


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
                "findings": [{**asdict(found), "advice": found.advice or None} for found in result.findings],
            }
            for result in results
        ],
    }
