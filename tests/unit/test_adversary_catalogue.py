"""The catalogue of programs that try to have more: tests/adversary/catalogue.md shows it, and each has a test."""

from __future__ import annotations

import os
import re

import pytest
from support import REPO
from support.adversary_table import END, PAGE, TAKERS, cells_of, chosen, page, pivot
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


def test_reports_of_shards_complete_each_other() -> None:
    beside = {"beside, 10 %": "9.9", "the tenant beside, 10 %": "89.0"}
    first = {"queue": beside, "killed": {"memory": "5 of 6 MiB"}}
    other = {"queue": {"beside, 50 %": "49.9"}}
    merged = cells_of([*pivot(first), "", "| test | outcome |", "| queue | 1 |", "", *pivot(other)])
    assert merged == {"queue": {**first["queue"], **other["queue"]}, "killed": first["killed"]}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", [("honest", 10), ("exec", 10), ("honest", 50), ("exec", 50)]),
        ("exec:50 honest", [("exec", 50), ("honest", 10), ("honest", 50)]),
        ("exec:50 *:50", [("exec", 50), ("honest", 50)]),
    ],
)
def test_some_of_them_are_tried_in_the_order_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, words: str, found: list[tuple[str, int]]
) -> None:
    monkeypatch.setenv("NVC_ADVERSARY_PROGRAMS", words)
    assert chosen(["honest", "exec"]) == found


@pytest.mark.parametrize("words", ["exe", "exec:20"])
def test_what_is_not_in_it_is_refused(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("NVC_ADVERSARY_PROGRAMS", words)
    with pytest.raises(AssertionError, match=words):
        chosen(["honest", "exec"])
