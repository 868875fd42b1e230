"""Faults for `nvc-cli doctor`: made for real, named in one line, mended by what it says.

case = Case("nodes.control", "rm /srv/sim/dev/nvidiactl", "nvidiactl is missing")
check(host, case)

Without a remedy of its own, the commands that doctor prints must mend it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import NamedTuple

from .engines import Host


class Case(NamedTuple):
    """One fault on a host."""

    check: str
    fault: str  # shell lines
    says: str  # in the one line that names it
    remedy: str = ""  # shell lines; "": the commands that are printed
    words: str = ""  # global options
    status: str = "failed"
    after: str = ""  # shell lines that take the rest back


class Named(NamedTuple):
    """A problem as it is printed."""

    line: str
    commands: tuple[str, ...]


def problems(text: str) -> list[Named]:
    """The problems of a report, each with its commands."""
    found: list[Named] = []
    for line in text.splitlines():
        if re.match(r"(failed|warning|cannot tell) ", line):
            found.append(Named(line, ()))
        elif line.startswith("    run     ") and found:
            found[-1] = Named(found[-1].line, (*found[-1].commands, line.removeprefix("    run     ")))
    return found


def examine(host: Host, words: str = "", checks: str = "") -> subprocess.CompletedProcess[str]:
    """Run doctor on the host of the test."""
    done = host.doctor(*shlex.split(words), "doctor", *checks.split())
    assert "Traceback" not in done.stderr and done.returncode in (0, 1, 2), done.stderr
    return done


#: Places that a remedy may touch, and what nvc makes again from other files.
HELD = "/etc /srv /run /usr/local/bin /usr/local/sbin /usr/local/lib/nvc /var/lib/cdi"
DERIVED = re.compile(r"/(ld\.so\.cache|\.?inventory-|config-)|\.nvc-undo$|/[0-9][0-9]-nvc\.conf$|/proc/")


def contents(host: Host) -> dict[str, str]:
    """Every regular file that a remedy may touch, with the sum of its content; links with their texts.

    Of large ones, which are the driver's, size and time serve: a remedy moves them at most.
    """
    small = "-type f -size +0 -size -100k -exec cksum {} +"
    script = f"find {HELD} -xdev -type l -printf '%l\\t%p\\n' -o {small} -o -type f -printf '%s %T@\\t%p\\n'"
    found = {}
    for line in host.sh(f"{script} 2>/dev/null || true").stdout.splitlines():
        text, tab, path = line.partition("\t")
        if not tab:
            number, size, path = line.split(" ", 2)
            text = f"{number} {size}"
        if not DERIVED.search(path):
            found[path] = text
    return found


def is_of_host(line: str) -> bool:
    """Whether a problem is that of being a test's machine."""
    return bool(re.match(r"\S.{12}host\.", line))


def _mended_as_advised(host: Host, case: Case, known: list[Named], commands: tuple[str, ...]) -> list[Named]:
    """The problems after doctor's own commands, which must destroy nothing and cause no other problem."""
    assert commands, "neither a command nor a remedy of the test"
    before = contents(host)
    host.sh("\n".join(commands))
    again = problems(examine(host, case.words).stdout)
    after = contents(host)
    lost = [path for path, same in before.items() if path not in after and same not in after.values()]
    assert not lost, f"{commands}: {lost}"
    lines = {one.line for one in known}
    assert not [one.line for one in again if one.line not in lines and not is_of_host(one.line)], again
    return again


def check(host: Host, case: Case) -> None:
    """Make the fault, see it named and mended by its remedy. What advises commands is a whole run."""
    host.sh(case.fault)
    try:
        done = examine(host, case.words, case.check.partition(".")[0] if case.remedy else "")
        named = [
            one for one in problems(done.stdout) if f"{case.check}: " in one.line and case.says in one.line
        ]
        assert len(named) == 1, done.stdout + done.stderr
        assert named[0].line.startswith(case.status.replace("unknown", "cannot tell")), named
        assert done.returncode == 1 or case.status != "failed"
        if case.remedy:
            host.sh(case.remedy)
            again = problems(examine(host, case.words, case.check).stdout)
        else:
            again = _mended_as_advised(host, case, problems(done.stdout), named[0].commands)
        assert not [one for one in again if f"{case.check}: " in one.line and case.says in one.line], again
    finally:
        if case.after:
            host.sh(case.after)
