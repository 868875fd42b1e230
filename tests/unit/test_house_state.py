"""No read of state whose failure is passed over: what cannot be read denies what depends on it, or is told."""

from __future__ import annotations

import ast

import pytest
from support.sources import read, sources

#: Functions that read what nvc has written for itself: entries, quotas, policies, ledgers, all slices.
READERS = frozenset(
    "read_entry read_quota sound_quota living living_of snapshot sharers use_of budgets_of tenants "
    "quota.read quota.unpack quota.finish policies.read policies.parse "
    "ledger.parse ledger.parse_slots ledger.parse_budgets known.read".split()
)
#: Where it is right, by file and function.
REASONS = {
    "nvc/slices/store/limits.py finish":
        "what could not be ended is as torn as before for the caller, which denies",
    "nvc/doctor/archive.py _tenants": "the archive has the findings of the checks, which name the cause",
}


def calls(nodes: list[ast.stmt]) -> set[str]:
    """What is called in statements: `name`, and `module.name`."""
    found = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Call):
            named = node.func
            if isinstance(named, ast.Name):
                found.add(named.id)
            elif isinstance(named, ast.Attribute):
                found.add(named.attr)
                if isinstance(named.value, ast.Name):
                    found.add(f"{named.value.id}.{named.attr}")
    return found


def is_silent(handler: ast.ExceptHandler) -> bool:
    """Whether nothing is done about the failure, nor told, nor kept."""
    return all(
        isinstance(one, (ast.Pass, ast.Continue))
        or isinstance(one, ast.Return)
        and not calls([one])
        and not any(isinstance(node, ast.Name) and node.id == handler.name for node in ast.walk(one))
        for one in handler.body
    )


def passed_over(text: str) -> list[str]:
    """The functions in which the failure of a read is passed over."""
    found = []
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Try)
                and READERS & calls(node.body)
                and any(map(is_silent, node.handlers))
            ):
                found.append(function.name)
    return found


@pytest.mark.parametrize("name", [name for name in sources(".py") if name.startswith("nvc/")])
def test_no_failure_of_a_read_is_passed_over(name: str) -> None:
    unexplained = [one for one in passed_over(read(name)) if f"{name} {one}" not in REASONS]
    assert not unexplained, f"{name}: {unexplained}: deny what depends on it, or tell it"


def test_each_reason_has_its_place() -> None:
    for place in REASONS:
        name, function = place.split()
        assert function in passed_over(read(name)), f"{place}: no longer needed"


@pytest.mark.parametrize(
    "handler",
    ["except OSError:\n   continue", "except Exception as error:\n   pass", "except (A, B):\n   return ()"],
)
def test_the_rule(handler: str) -> None:
    text = f"def one():\n for x in y:\n  try:\n   z = registry.read_entry(x)\n  {handler}\n"
    assert passed_over(text) == ["one"]
    for silent in ("continue", "pass", "return ()"):
        text = text.replace(silent, "raise")
    assert not passed_over(text)
