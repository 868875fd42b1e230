"""docs/doctor.md knows every check, every option and every key."""

from __future__ import annotations

import ast
import functools
import glob
import os
import re
from string import Formatter

import click
from support import REPO
from support.sources import tree

from nvc.doctor import OK, Check, Finding, Result, document, first
from nvc.doctor.catalog import CHECKS
from nvc_cli.doctor import doctor

with open(os.path.join(REPO, "docs/doctor.md"), encoding="utf-8") as file:
    TEXT = file.read()


def test_the_page_has_every_group_of_checks() -> None:
    cells = re.findall(r"^\| (`[^|]*) \|", TEXT.partition("## Checks\n")[2], re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(cells)))
    assert named == {check.name.partition(".")[0] for check in CHECKS}


def test_names() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+\.[a-z-]+", name) for name in names)
    assert all(check.title and "|" not in check.title for check in CHECKS)


def test_each_check_has_a_fault() -> None:
    tests = ""
    for path in glob.glob(os.path.join(REPO, "tests/*/test_doctor_*.py")):
        with open(path, encoding="utf-8") as file:
            tests += file.read()
    assert not [check.name for check in CHECKS if check.name not in tests]


def test_every_option_and_key() -> None:
    for option in doctor.params:
        if isinstance(option, click.Option):
            assert any(f"`{name}" in TEXT or f" {name}`" in TEXT for name in option.opts), option.opts
    made = document((Result(Check("a.b", "", lambda _: ()), (Finding(OK, "x"),)),))
    for key in {*made, *made["checks"][0], *made["checks"][0]["findings"][0]}:
        assert f"`{key}`" in TEXT, key


def test_a_list_that_is_cut_says_how_much_is_left_out() -> None:
    assert first(["a", "b"], 2) == ("a", "b")
    assert first(str(number) for number in range(10)) == (*"01234567", "and 2 more")


@functools.cache
def facts_of(name: str) -> set[str]:
    """The names that facts of a file have, and those of the files of doctor that it imports."""
    imported = [str(node.module) for node in ast.walk(tree(name)) if isinstance(node, ast.ImportFrom)]
    files = [f"{module.replace('.', '/')}.py" for module in imported if module.startswith("nvc.doctor.")]
    found = {"seen", "run"}
    for node in (node for file in (name, *files) for node in ast.walk(tree(file))):
        if isinstance(node, ast.keyword):
            found.add(node.arg or "")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def test_rows_use_what_facts_have() -> None:
    """What a fact does not have is empty: a name that no fact has is misspelled."""
    for check in CHECKS:
        known = facts_of(f"{check.facts.__module__.replace('.', '/')}.py")
        for row in check.rows:
            texts = (row.text, row.advice, *row.seen, *row.run)
            fields = [field for text in texts for _, field, _, _ in Formatter().parse(text) if field]
            used = {re.split(r"[.[]", field)[0] for field in fields}
            when = row.when.__code__.co_names if callable(row.when) else filter(None, [row.when])
            assert used | set(when) <= known, row.text
