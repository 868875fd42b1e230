"""Every row of the matrix of tests for slices is named by a test, `rows: M1 P6` in its docstring, or explained."""

from __future__ import annotations

import pytest
from support import matrix


@pytest.fixture(scope="module")
def named() -> dict[str, list[str]]:
    return matrix.named()


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, str]]:
    return matrix.data()


def test_every_row_is_tested_or_explained(
    named: dict[str, list[str]], tables: dict[str, dict[str, str]]
) -> None:
    assert [row for row in tables["rows"] if row not in named and row not in tables["not-tested"]] == []


def test_nothing_is_both(named: dict[str, list[str]], tables: dict[str, dict[str, str]]) -> None:
    assert set(named) & set(tables["not-tested"]) == set()


def test_every_name_is_a_row(named: dict[str, list[str]], tables: dict[str, dict[str, str]]) -> None:
    assert (set(named) | set(tables["not-tested"])) - set(tables["rows"]) == set()
    assert all(len(why) > 40 for why in tables["not-tested"].values())


def test_reports_are_read(tmp_path: str) -> None:
    report = f"{tmp_path}/report.md"
    with open(report, "w", encoding="ascii") as out:
        out.write(
            "| test_a[x] | passed | 0.1 |  |\n| test_a[y] | failed | 0.1 | no |\n| test_b | passed | 1 |  |\n"
        )
    assert matrix.outcomes([report]) == {"test_a": (1, 2), "test_b": (1, 1)}
    assert matrix.line("M1", ["gpu/f.py::test_a"], {"test_a": (1, 2)}, "").startswith("**failed**: 1 of 2 |")
    assert matrix.line("M1", ["native/f.py::test_c"], {}, "").startswith("passed on the simulated driver")
