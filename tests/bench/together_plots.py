"""Draws what `bench together -o json` printed: one SVG for each load. Usage: together_plots.py FILE DIRECTORY"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from nvc.slices.show.plot import COLOURS, escaped

WIDTH, LEFT, BAR, GAP, TEXT, TOP = 760, 180, 16, 10, 230, 48


def bars(load: str, rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """The drawing of a load: a bar for each way and number of tenants, as long as what all did of one alone."""
    shown = [row for row in rows if row["load"] == load and row["ofAlone"] and len(row["weights"]) > 1]
    counts = sorted({len(row["weights"]) for row in shown})
    ways = list(dict.fromkeys(row["way"] for row in shown))
    most = max(row["ofAlone"] for row in shown)
    unit = (WIDTH - LEFT - TEXT) / most
    parts, at = [_text(16, 20, f"{load}: steps of all tenants, of what one does alone", 15)], TOP
    parts.append(_text(16, 36, f"{about['GPU']}, driver {about['driver']}, {about['date']}"))
    for count in counts:
        for row in (row for row in shown if len(row["weights"]) == count):
            even = len(set(row["weights"])) == 1
            name = row["way"] if even else f"{row['way']} {':'.join(map(str, row['weights']))}"
            late = f", p99 {row['p99Ms']:.1f} ms" if row["p99Ms"] else ""
            colour = COLOURS[ways.index(row["way"]) % len(COLOURS)]
            length = unit * row["ofAlone"]
            parts.append(_text(16, at + BAR - 4, f"{count} tenants, {name}"))
            parts.append(f'<rect x="{LEFT}" y="{at}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
            said = f"{row['ofAlone']:.2f} ({row['stepsPerSecond']:.0f} a second{late})"
            parts.append(_text(LEFT + length + 6, at + BAR - 4, said))
            at += BAR + 4
        at += GAP
    one = LEFT + unit
    parts.append(f'<line x1="{one:.1f}" y1="{TOP - 4}" x2="{one:.1f}" y2="{at - GAP}" stroke="#444"/>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {at}" width="{WIDTH}" height="{at}" '
        f'font-family="sans-serif" font-size="12"><rect width="{WIDTH}" height="{at}" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escaped(text)}</text>'


def main(path: str, directory: str) -> None:
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    rows = [row for row in found["rows"] if not row["way"].startswith("strict")]
    for load in dict.fromkeys(row["load"] for row in rows):
        if any(row["load"] == load and row["ofAlone"] and len(row["weights"]) > 1 for row in rows):
            with open(os.path.join(directory, f"{load}.svg"), "w", encoding="utf-8") as out:
                out.write(bars(load, rows, found["about"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
