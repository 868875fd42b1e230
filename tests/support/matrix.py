"""The matrix of tests for slices: which test is of which row, and what reports of a real driver say of them.

    PYTHONPATH=.:tests python3 -m support.matrix REPORT.md...

prints a table in Markdown. A later report wins over an earlier one; so a test that was mended can be run alone.
"""

from __future__ import annotations

import ast
import os
import re
import sys

from support import REPO

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

FOLDERS = ("unit", "kernel", "native", "gpu")
RESULT = re.compile(r"^\| (test_\w+)(\[.*\])? \| (passed|failed|skipped) \|", re.MULTILINE)


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
                if not isinstance(node, ast.FunctionDef):
                    continue
                notes = ast.get_docstring(node) or ""
                rows = " ".join(re.findall(r"rows:((?: [A-Z]\d+)+)", notes)).split()
                rows += [part.upper() for part in node.name.split("_") if re.fullmatch(r"c\d+", part)]
                for row in rows:
                    found.setdefault(row, []).append(f"{folder}/{name}::{node.name}")
    return found


def data() -> dict[str, dict[str, str]]:
    """The rows, and why some have no test."""
    with open(os.path.join(REPO, "tests/data/vgpu_rows.toml"), "rb") as file:
        tables: dict[str, dict[str, str]] = tomllib.load(file)
    return tables


def outcomes(paths: list[str]) -> dict[str, tuple[int, int]]:
    """How many cases of each test passed, of how many."""
    cases: dict[str, dict[str, bool]] = {}
    for path in paths:
        with open(path, encoding="utf-8") as report:
            for name, case, outcome in RESULT.findall(report.read()):
                cases.setdefault(name, {})[case] = outcome == "passed"
    return {name: (sum(found.values()), len(found)) for name, found in cases.items()}


def line(row: str, tests: list[str], results: dict[str, tuple[int, int]], why: str) -> str:
    """What is known of a row."""
    real = [test for test in tests if test.startswith("gpu/") and test.rpartition("::")[2] in results]
    if real:
        passed = sum(results[test.rpartition("::")[2]][0] for test in real)
        count = sum(results[test.rpartition("::")[2]][1] for test in real)
        word = "passed" if passed == count else f"**failed**: {count - passed} of {count}"
        names = sorted({test.rpartition("::")[2] for test in real})
        return f"{word} | `{'`, `'.join(names)}`"
    elsewhere = [test for test in tests if not test.startswith("gpu/")]
    if tests and not elsewhere:
        return f"not run | `{tests[0].rpartition('::')[2]}`"
    if elsewhere:
        names = sorted({test.rpartition("::")[2] for test in elsewhere})
        return f"passed on the simulated driver alone | `{'`, `'.join(names[:3])}`"
    return f"not tested | {why}"


def main(paths: list[str]) -> None:
    tables, tests, results = data(), named(), outcomes(paths)
    print("| row | case | outcome | by |\n| --- | --- | --- | --- |")
    for row, title in tables["rows"].items():
        why = tables["not-tested"].get(row, "")
        print(f"| {row} | {title} | {line(row, tests.get(row, []), results, why)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
