"""The catalogue of programs that try to have more: tests/adversary/catalogue.md shows it, and each has a test."""

from __future__ import annotations

import os
import re

from support import REPO
from support.adversary_table import END, PAGE, TAKERS, page
from support.adversary_time import WAYS


def test_the_page_shows_it() -> None:
    """`PYTHONPATH=.:tests python3 -m support.adversary_table` writes it."""
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    assert page(text) == text


def test_no_name_is_there_twice_and_rights_have_their_tests() -> None:
    """Those of the second table, which is written by hand."""
    with open(PAGE, encoding="utf-8") as file:
        rows = re.findall(r"^\| (.*?) \| .* \| `(.*?)::(\w+)` \|$", file.read().partition(END)[2], re.MULTILINE)
    names = [*(one.name for one in (*WAYS, *TAKERS)), *(name for name, _, _ in rows)]
    assert len(names) == len(set(names)) and len(rows) >= 60
    for _, path, function in rows:
        with open(os.path.join(REPO, "tests", path), encoding="utf-8") as test:
            assert f"\ndef {function}(" in test.read(), f"{path}::{function}"


def test_ways_are_those_of_the_program() -> None:
    """Every way of take_time is in the catalogue, and the other way round."""
    folder, found = os.path.join(REPO, "tests/adversary"), set()
    for name in os.listdir(folder):
        if name.endswith(".c"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                ways = file.read().partition("const struct way ")[2].partition("};")[0]
            found |= {part.split('"')[1] for part in ways.split("{") if part.startswith('"')}
    others = {"calibrate", "lengths"}
    assert found - others == {way.name for way in WAYS}
