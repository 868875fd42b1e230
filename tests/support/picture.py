"""A terminal's screen as a picture: SVG, with the colours that `capture-pane -e` prints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.sax.saxutils import escape

SELECT = re.compile(r"\x1b\[([0-9;]*)m")
#: Colours by their number in a terminal, readable on a light and on a dark page.
COLOURS = {
    "31": "#cf222e", "32": "#2da44e", "33": "#bf8700", "34": "#218bff",
    "35": "#a475f9", "36": "#1b7c83", "90": "#8c959f",
}  # fmt: skip
PLAIN, GROUND = "#d0d7de", "#161b22"
WIDTH, HEIGHT = 8.4, 18.0  # of a character


def drawing(lines: Iterable[str]) -> str:
    """The picture of lines with escape sequences."""
    rows = [row(line, index) for index, line in enumerate(lines)]
    columns = max(len(SELECT.sub("", line)) for line in lines)
    size = f'width="{(columns + 2) * WIDTH:.0f}" height="{(len(rows) + 1) * HEIGHT:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="14">',
            f'<rect width="100%" height="100%" rx="6" fill="{GROUND}"/>',
            *rows,
            "</svg>\n",
        ]
    )


def row(line: str, index: int) -> str:
    """A line of the screen: each run of one colour at its column."""
    colour, bold, column, runs = PLAIN, "", 0, []
    parts = SELECT.split(line)
    for text, codes in zip(parts[::2], [*parts[1::2], ""]):
        if text.strip():
            at = f'x="{(column + 1) * WIDTH:.1f}" y="{(index + 1) * HEIGHT:.0f}"'
            runs.append(f'<text {at} fill="{colour}"{bold} xml:space="preserve">{escape(text)}</text>')
        column += len(text)
        for code in codes.split(";"):
            if code in ("", "0", "39"):
                colour, bold = PLAIN, "" if code != "39" else bold
            elif code == "1":
                bold = ' font-weight="bold"'
            else:
                colour = COLOURS.get(code, colour)
    return "".join(runs)
