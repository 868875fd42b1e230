"""What an image demands of the host: `cuda>=12.4`, `driver>=550`, `arch>=7.0`, `brand=tesla`.

One expression is a predicate: a space means OR, a comma AND, and AND binds tighter. Each expression must
hold. The rules, down to their oddities, are those of nvidia-container-cli: images are written against it.
"""

from __future__ import annotations

from nvc.base.errors import RequirementError
from nvc.model.facts import Gpu, HostFacts
from nvc.model.selection import Selection

#: `!` alone is accepted, as the peers accept it.
OPERATORS = {"=": "=", "!=": "!=", "!": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
VERSION_CHARACTERS = frozenset("0123456789.")
#: The peers print a rule that fails into a buffer of this size, and call a longer one invalid.
MAX_RULE = 128
#: strtoumax(3) reports its overflow with this value.
OVERFLOW = 2**64 - 1

#: The first driver branch that supports a CUDA version: table 3 of the CUDA Toolkit release notes.
DRIVER_BRANCHES = {
    (11, 0): 450,
    (11, 1): 455,
    (11, 2): 460,
    (11, 3): 465,
    (11, 4): 470,
    (11, 5): 495,
    (11, 6): 510,
    (11, 7): 515,
    (11, 8): 520,
    (12, 0): 525,
    (12, 1): 530,
    (12, 2): 535,
    (12, 3): 545,
    (12, 4): 550,
    (12, 5): 555,
    (12, 6): 560,
    (12, 7): 565,
    (12, 8): 570,
    (12, 9): 575,
    (13, 0): 580,
    (13, 1): 590,
}


def check(expressions: tuple[str, ...], facts: HostFacts, selection: Selection) -> None:
    """Raise RequirementError unless every expression holds for each selected GPU, or else for the host."""
    if not expressions:
        return
    for gpu in selection.gpus or (None,):
        known = _known(facts, gpu)
        for expression in expressions:
            if not _holds(expression, known):
                raise _unsatisfied(expression, known, facts, gpu)


def _known(facts: HostFacts, gpu: Gpu | None) -> dict[str, str]:
    """What each name of a rule stands for; "" where the host does not say, which satisfies every rule."""
    return {
        "cuda": facts.cuda_version,
        "driver": facts.driver_version,
        "arch": gpu.architecture if gpu else "",
        "brand": gpu.brand if gpu else "",
    }


def _holds(expression: str, known: dict[str, str]) -> bool:
    """The value of a predicate. What follows a true group, or a false rule in its group, is never parsed."""
    result = True
    for group in expression.split(" "):
        if not group:
            continue
        for rule in group.split(","):
            if not rule:
                continue
            result = _rule_holds(rule, known)
            if not result:
                break
        else:
            break  # also after a group of commas only, which leaves the result as it was
    return result


def _rule_holds(rule: str, known: dict[str, str]) -> bool:
    name, operator, value = _parts(rule)
    if name not in known or not operator or not value:
        raise _invalid(rule)
    actual = known[name]
    if not actual:
        return True
    if name == "brand":
        if operator not in ("=", "!="):
            raise _invalid(rule)
        result = (actual.lower() == value.lower()) == (operator == "=")
    else:
        order = _compare(actual, value)
        if order is None:
            raise _invalid(rule)
        result = _satisfies(order, operator)
    if not result and len(f"{name} {operator} {value}") >= MAX_RULE:
        raise _invalid(rule)
    return result


def _parts(rule: str) -> tuple[str, str, str]:
    """Name in lower case, operator and value; the operator is "" where there is none or an unknown one."""
    start = 0
    while start < len(rule) and rule[start] not in "<>=!":
        start += 1
    end = start
    while end < len(rule) and rule[end] in "<>=!":
        end += 1
    return rule[:start].lower(), OPERATORS.get(rule[start:end], ""), rule[end:]


def _compare(actual: str, wanted: str) -> int | None:
    """-1, 0 or 1 as `actual` is older than, equal to or newer than `wanted`; None where one is malformed.

    Missing components count as zero. A component is only looked at when those before it were equal.
    """
    if not (VERSION_CHARACTERS.issuperset(actual) and VERSION_CHARACTERS.issuperset(wanted)):
        return None
    while actual and wanted:
        ours, _, actual = actual.partition(".")
        theirs, _, wanted = wanted.partition(".")
        actual, wanted = actual.lstrip("."), wanted.lstrip(".")
        if not ours or not theirs or len(ours) > 64 or len(theirs) > 64:
            return None
        a, b = int(ours), int(theirs)
        if a >= OVERFLOW or b >= OVERFLOW:
            return None
        if a != b:
            return -1 if a < b else 1
    if actual.strip(".0"):
        return 1
    return -1 if wanted.strip(".0") else 0


def _satisfies(order: int, operator: str) -> bool:
    if operator == "=":
        return order == 0
    if operator == "!=":
        return order != 0
    if order == 0:
        return operator in ("<=", ">=")
    return operator[0] == ("<" if order < 0 else ">")


def _invalid(rule: str) -> RequirementError:
    return RequirementError("invalid expression", cause=rule)


def _unsatisfied(text: str, known: dict[str, str], facts: HostFacts, gpu: Gpu | None) -> RequirementError:
    """The peers' text, which names the first group only, and a hint from the rule of it that fails."""
    group = next(part for part in text.split(" ") if part)
    failing = next((rule for rule in group.split(",") if rule and not _rule_holds(rule, known)), "")
    cause = group
    if group.startswith("cuda>="):
        cause += ", please update your driver to a newer version, or use an earlier cuda container"
    return RequirementError("unsatisfied condition", cause=cause, hint=_hint(failing, known, facts, gpu))


def _hint(rule: str, known: dict[str, str], facts: HostFacts, gpu: Gpu | None) -> str:
    """What the host has, what would do, and how to skip the check."""
    name, operator, value = _parts(rule)
    has = f"this host has driver {facts.driver_label} with CUDA {facts.cuda_version or 'unknown'}"
    if gpu is not None and name in ("arch", "brand"):
        word = "compute capability" if name == "arch" else "brand"
        has = f"GPU {gpu.index} ({gpu.name}) has {word} {known[name]}"
    if name == "cuda" and operator[0] in "=>":
        branch = _driver_branch(value)
        if branch and _compare(known["cuda"], value) == -1:
            has += f" and CUDA {value} needs driver {branch} or newer"
    return f"{has}; NVIDIA_DISABLE_REQUIRE=1 skips this check"


def _driver_branch(cuda: str) -> int:
    """The oldest driver branch for a CUDA version, 0 where it is not known."""
    parts = (cuda.split(".") + ["0"])[:2]
    if not all(part.isdecimal() and len(part) < 4 for part in parts):
        return 0
    return DRIVER_BRANCHES.get((int(parts[0]), int(parts[1])), 0)
