"""Draws what tests/bench/sharing.py kept with --json: one SVG for each scenario. Usage: plots.py FILE DIRECTORY"""

from __future__ import annotations

import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from nvc.slices.show.plot import Series, svg


def main(path: str, directory: str) -> None:
    with open(path, encoding="ascii") as file:
        scenarios = json.load(file)
    for scenario in scenarios:
        lines = scenario["shares"]
        end = max(at for points in lines.values() for at, _ in points) / 1000
        series = tuple(
            Series(name, tuple((at / 1000, min(share, 1.05)) for at, share in points))
            for name, points in lines.items()
        )
        name = re.sub(r"[^a-z0-9]+", "-", scenario["title"].lower()).strip("-")
        with open(os.path.join(directory, f"{name}.svg"), "w", encoding="utf-8") as out:
            out.write(svg(scenario["title"], series, end))


if __name__ == "__main__":
    main(*sys.argv[1:])
