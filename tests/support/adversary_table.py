"""The catalogue of programs that try to have more than their slice, as tables.

    PYTHONPATH=.:tests python3 -m support.adversary_table

writes the first table of tests/adversary/catalogue.md anew, of memory and time. With paths of reports of
`gpu-tests -k adversary` it prints what they say of the programs, as one table: a later report wins, and reports of
shards complete each other.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from . import (
    REPO,
    adversary_memory,
    adversary_memory_held,
    adversary_memory_more,
    adversary_memory_moved,
    adversary_memory_race,
)
from .adversary_time import WAYS

_FAMILIES = (
    adversary_memory,
    adversary_memory_more,
    adversary_memory_moved,
    adversary_memory_race,
    adversary_memory_held,
)
TAKERS = tuple(taker for family in _FAMILIES for taker in family.TAKERS)
PAGE = os.path.join(REPO, "tests/adversary/catalogue.md")
BEGIN, END = (
    "<!-- the catalogue: made by tests/support/adversary_table.py -->",
    "<!-- end of the catalogue -->",
)

#: `note(program, column, value)` puts what a program had into the report.
Note: TypeAlias = Callable[[str, str, str], None]
Cells: TypeAlias = dict[str, dict[str, str]]  # by program, by column

SECONDS = float(os.environ.get("NVC_ADVERSARY_SECONDS", "10"))  # for each program that tries to have time
_MINUTES = float(os.environ.get("NVC_ADVERSARY_MINUTES", "1000"))
_BEGAN = time.monotonic()
BESIDE = ("beside", "the tenant beside", "the tenant beside honest")
SHARES = [f"{kind}, {cap} %" for cap in (10, 50) for kind in BESIDE]
#: Without the shim: what a program counts by itself, and beside another one, and what the other has meanwhile.
BARE = ["by itself", "beside another", "the other"]
TABLES = {"memory": ["memory"], "time, %": SHARES, "without nvc, %": BARE}


def seconds_left() -> float:
    """Of NVC_ADVERSARY_MINUTES, in which all must have been tried."""
    return _BEGAN + 60 * _MINUTES - time.monotonic()


def shard() -> tuple[int, int]:
    """NVC_ADVERSARY_SHARD=1/4: the second of four processes that try a part of the programs each, on a GPU each."""
    index, _, count = os.environ.get("NVC_ADVERSARY_SHARD", "0/1").partition("/")
    assert 0 <= int(index) < int(count), "NVC_ADVERSARY_SHARD is INDEX/COUNT, from 0 on"
    return int(index), int(count)


def chosen(names: Collection[str]) -> list[tuple[str, int]]:
    """NVC_ADVERSARY_PROGRAMS="exec:50 dying *:10": what is tried, in this order, as names and caps.

    A name without a cap stands for both; `*` for all programs. Empty: all, in the catalogue's order.
    """
    found: list[tuple[str, int]] = []
    for word in os.environ.get("NVC_ADVERSARY_PROGRAMS", "").split() or ["*:10", "*:50"]:
        name, _, cap = word.partition(":")
        assert name == "*" or name in names, f"NVC_ADVERSARY_PROGRAMS: no program {name}"
        assert cap in ("", "10", "50"), f"NVC_ADVERSARY_PROGRAMS: {word}: the cap is 10 or 50"
        for value in (int(cap),) if cap else (10, 50):
            found += [(one, value) for one in (names if name == "*" else (name,))]
    return list(dict.fromkeys(found))


def catalogue() -> list[str]:
    """The first table of tests/adversary/catalogue.md: what is tried, what must hold, and the test."""
    lines = ["| program | what it tries | what must hold | by |", "| --- | --- | --- | --- |"]
    where = {True: "", False: ", simulated GPUs alone"}
    lines += [f"| `{way.name}` | {way.tries} | its cap | time{where[way.gpu]} |" for way in WAYS]
    for one in TAKERS:
        lines.append(f"| {one.name} | {one.tries} | {one.limit >> 30} GiB | memory{where[one.gpu]} |")
    return lines


def page(text: str) -> str:
    """The page with the table as the catalogue has it now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([f"{before}{BEGIN}", "", *catalogue(), "", f"{END}{after}"])


def pivot(cells: Cells) -> list[str]:
    """What programs had: memory, and time in percent."""
    lines = []
    for title, columns in TABLES.items():
        found = {name: row for name, row in cells.items() if any(column in row for column in columns)}
        if found:
            lines += ["", f"| {title} | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
            lines += [
                f"| {name} | {' | '.join(row.get(column, '') for column in columns)} |"
                for name, row in found.items()
            ]
    return lines


def cells_of(lines: Iterable[str]) -> Cells:
    """Those that `pivot` has put into a report."""
    found: Cells = {}
    columns: list[str] = []
    for line in lines:
        words = [word.strip() for word in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif words[0] in TABLES:
            columns = words[1:]
        elif len(words) == len(columns) + 1 and words[0] != "---":
            found.setdefault(words[0], {}).update(
                {column: word for column, word in zip(columns, words[1:]) if word}
            )
    return found


def main(paths: list[str]) -> None:
    if not paths:
        with open(PAGE, encoding="utf-8") as file:
            text = file.read()
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(page(text))
        return
    merged: Cells = {}
    for path in paths:
        with open(path, encoding="utf-8") as report:
            for name, row in cells_of(report.read().splitlines()).items():
                merged.setdefault(name, {}).update(row)
    print("\n".join(pivot(merged)))


if __name__ == "__main__":
    main(sys.argv[1:])
