"""Every row of the matrix of tests for slices is named by a test, `rows: M1 P6` in its docstring, or explained."""

from __future__ import annotations

import ast
import os
import re
import sys

import pytest
from support import REPO

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROWS = (
    *(f"M{n}" for n in range(1, 48)),
    *(f"P{n}" for n in range(1, 25)),
    *(f"V{n}" for n in range(1, 9)),
    *(f"O{n}" for n in range(1, 8)),
)
FOLDERS = ("unit", "kernel", "native", "gpu")


@pytest.fixture(scope="module")
def named() -> dict[str, list[str]]:
    """Which tests name a row: `native/test_vgpu_memory.py::test_stream_order`, by row."""
    found: dict[str, list[str]] = {}
    for folder in FOLDERS:
        directory = os.path.join(REPO, "tests", folder)
        for name in sorted(os.listdir(directory)):
            if not re.fullmatch(r"test_vgpu_\w+\.py", name):
                continue
            with open(os.path.join(directory, name), encoding="utf-8") as source:
                tree = ast.parse(source.read())
            for node in tree.body:
                notes = ast.get_docstring(node) or "" if isinstance(node, ast.FunctionDef) else ""
                for row in " ".join(re.findall(r"rows:((?: [A-Z]\d+)+)", notes)).split():
                    found.setdefault(row, []).append(f"{folder}/{name}::{getattr(node, 'name', '')}")
    return found


@pytest.fixture(scope="module")
def explained() -> dict[str, str]:
    with open(os.path.join(REPO, "tests/data/vgpu_rows.toml"), "rb") as file:
        rows: dict[str, str] = tomllib.load(file)["not-tested"]
    return rows


def test_every_row_is_tested_or_explained(named: dict[str, list[str]], explained: dict[str, str]) -> None:
    assert [row for row in ROWS if row not in named and row not in explained] == []


def test_nothing_is_both(named: dict[str, list[str]], explained: dict[str, str]) -> None:
    assert set(named) & set(explained) == set()


def test_every_name_is_a_row(named: dict[str, list[str]], explained: dict[str, str]) -> None:
    assert (set(named) | set(explained)) - set(ROWS) == set()
    assert all(len(why) > 40 for why in explained.values())
