"""What the codes of errors mean, as docs/errors.md has it. A code never changes its meaning; one that is no longer
used is not used again."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from nvc.base.errors import InputError

#: A link to docs/errors.md, or a copy where nvc is installed.
PAGE = os.path.join(os.path.dirname(__file__), "errors.md")
_ABOUT = re.compile(r"`(.+) error`, class `(\w+)`\. (.+)")
_CHECK = re.compile(r"Check with `nvc-cli doctor (.+)`\.")


@dataclass(frozen=True)
class Explanation:
    """What is known of one code."""

    code: str
    name: str  # of the class
    stage: str  # first word of the message
    meaning: str
    causes: tuple[str, ...]
    checks: str  # arguments of `nvc-cli doctor`, "" where no check looks into it
    remedies: tuple[str, ...]


def _explanation(section: str) -> Explanation:
    """The explanation of a section of the page: what it is, a list of causes, perhaps a check, remedies."""
    code, text, causes, *check, remedies = section.strip().split("\n\n")
    about, checks = _ABOUT.fullmatch(text), _CHECK.fullmatch("".join(check))
    assert about is not None, f"{PAGE}: {code}: {text}"
    return Explanation(
        code, about[2], about[1], about[3], tuple(line.removeprefix("- ") for line in causes.splitlines()),
        checks[1] if checks else "", tuple(remedies.splitlines()),
    )  # fmt: skip


with open(PAGE, encoding="utf-8") as _file:
    EXPLANATIONS = tuple(map(_explanation, _file.read().split("\n## ")[1:]))
BY_CODE = {explanation.code: explanation for explanation in EXPLANATIONS}


def explain(code: str) -> Explanation:
    """The explanation of a code, as it is or without NVC-. Raises InputError."""
    wanted = code.strip().upper()
    found = BY_CODE.get(wanted) or BY_CODE.get(f"NVC-{wanted}")
    if found is None:
        raise InputError("explain", code, "there is no such code", "`nvc-cli explain` lists all")
    return found


def text_of(found: Explanation) -> str:
    """For people."""
    lines = [f"{found.code}: {found.stage} error", f"  {found.meaning}", "", "Common causes"]
    lines += [f"  - {cause}" for cause in found.causes]
    if found.checks:
        lines += ["", "Check", f"  nvc-cli doctor {found.checks}"]
    lines += ["", "Remedy", *(f"  - {remedy}" for remedy in found.remedies)]
    return "".join(f"{line}\n" for line in lines)
