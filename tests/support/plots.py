"""Plots of docs/measurements/README.md, drawn from the tables of the reports.

    PYTHONPATH=.:tests python3 -m support.plots

writes docs/pictures/measurements/*.svg anew.
"""

from __future__ import annotations

import os
import re
from xml.sax.saxutils import escape

from . import REPO
from .prose import read

FOLDER = "docs/pictures/measurements"
REPORTS = "docs/measurements/reports"
TIME, STARTS, MEMORY = (f"{REPORTS}/{name}.md" for name in
                        ("2026-11-24-time-h100", "2026-11-23-starts", "2026-11-21-vgpu-memory"))  # fmt: skip
LABEL, BAR, RIGHT, LINE = 230, 360, 90, 20  # widths, and the height of a line
COLOURS = ("#2da44e", "#8c959f")
Bars = list[tuple[str, tuple[float, ...]]]  # label, and a value for each series


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    lines = read(page).partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in found[1:] if not row[0].startswith("---")]


def median(heading: str, row: str) -> float:
    """The median of a row of the first table that a benchmark has printed below a heading."""
    text = read(STARTS).partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(rf"^ {{4}}{re.escape(row)} +([\d.]+)", text, re.MULTILINE)
    assert found is not None, row
    return float(found[1])


def starts() -> Bars:
    """Starts and parts of them, by nvc and by NVIDIA's toolkit."""
    none = median("CDI", "no GPU")
    return [
        ("all GPUs by CDI, more than none", (median("CDI", "nvc") - none, median("CDI", "peer") - none)),
        ("the hook, again", (median("The hook", "nvc-hook, valid inventory"), median("The hook", "peer hook"))),
        ("configure, again", (median("configure", "nvc configure, again"), median("configure", "peer configure"))),
    ]  # fmt: skip


def weights() -> Bars:
    """Eight programs with weights 1 to 8: received, and the ideal."""
    (text,) = re.findall(r"They got (.*?) %", read(TIME), re.DOTALL)
    received = [float(number) for number in re.findall(r"\d+\.\d+", text)]
    return [(f"weight {n}", (got, 100 * n / 36)) for n, got in enumerate(received, 1)]


def caps() -> Bars:
    """Received by a slice that is alone, and its cap."""
    return [(f"cap {row[0]}, kernels of {row[1]}", (float(row[2]), float(row[0]))) for row in rows(TIME, "Caps")]


def latency() -> Bars:
    """Decode loops under weight: p99, and that of the driver without nvc."""
    return [(f"{row[0]} loops", (float(row[2]), 1.0)) for row in rows(TIME, "Decode loops of PyTorch")]


def memory() -> Bars:
    """What the shim counted, and what NVML showed, in MiB."""
    bars: Bars = []
    for name, cell in rows(MEMORY, "What is counted, and what NVML shows from outside"):
        taken, counted = map(float, cell.split(", "))
        if taken >= 300:
            bars.append((name, (counted, taken)))
    return bars


#: The name of a file, its title with the unit, the series, and what makes the bars.
PLOTS = (
    ("starts", "Median ms, one H200, 2026-11-23: less is better", ("nvc", "NVIDIA's toolkit"), starts),
    ("weights", "Percent of the GPU's time, one H100, 2026-11-24", ("received", "ideal"), weights),
    ("caps", "Percent of the GPU's time, alone, one H100, 2026-11-24", ("received", "cap"), caps),
    ("latency", "p99 of a step, driver without nvc = 1, one H100, 2026-11-24", ("weight", "driver"), latency),
    ("memory", "MiB, one H100, 2026-11-21", ("counted by the shim", "shown by NVML"), memory),
)


def drawn(title: str, series: tuple[str, ...], bars: Bars) -> str:
    """Horizontal bars: labels on the left, values on the right, so that none crosses another."""
    most = max(value for _, values in bars for value in values)
    parts, y = [f'<text x="10" y="18" font-weight="bold">{escape(title)}</text>'], 44
    for number, name in enumerate(series):
        x = 10 + number * 220
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{COLOURS[number]}"/>')
        parts.append(f'<text x="{x + 18}" y="{y}">{escape(name)}</text>')
    for label, values in bars:
        y += LINE + 6
        parts.append(f'<text x="{LABEL - 8}" y="{y + 8}" text-anchor="end">{escape(label)}</text>')
        for number, value in enumerate(values):
            at, width = y - 8 + number * 12, max(1.0, value / most * BAR)
            parts.append(f'<rect x="{LABEL}" y="{at}" width="{width:.1f}" height="10" fill="{COLOURS[number]}"/>')
            parts.append(f'<text x="{LABEL + width + 6:.1f}" y="{at + 9}" font-size="10">{value:.4g}</text>')
    size = f'width="{LABEL + BAR + RIGHT}" height="{y + LINE + 6}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def plots() -> dict[str, str]:
    """Every plot, by its path."""
    return {f"{FOLDER}/{name}.svg": drawn(title, series, made()) for name, title, series, made in PLOTS}


if __name__ == "__main__":
    os.makedirs(os.path.join(REPO, FOLDER), exist_ok=True)
    for path, text in plots().items():
        with open(os.path.join(REPO, path), "w", encoding="utf-8") as out:
            out.write(text)
