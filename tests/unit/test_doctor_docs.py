"""docs/doctor.md knows every check, every option and every key."""

from __future__ import annotations

import glob
import os
import re

import click
from support import REPO

from nvc.doctor import OK, Check, Finding, Result, document, first
from nvc.doctor.catalog import CHECKS, table
from nvc_cli.doctor import doctor

REGENERATE = "run packaging/tables.py"

with open(os.path.join(REPO, "docs/doctor.md"), encoding="utf-8") as file:
    TEXT = file.read()


def test_the_table_of_checks() -> None:
    assert TEXT.endswith(f"## Checks\n\n{table()}"), REGENERATE


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
