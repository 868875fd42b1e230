"""Bars, lines of history and short amounts for a terminal: pieces of text, each with the name of a style. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TypeAlias

from nvc.base.value import Value

Span: TypeAlias = tuple[str, str]
Line: TypeAlias = tuple[Span, ...]

UNITS = "MGTP"


class Characters(Value):
    """What bars and lines are drawn with."""

    full: str
    parts: str  # from nothing to nearly a whole cell
    empty: str
    mark: str
    steps: str  # from 0 to 100 %


BLOCKS = Characters("█", " ▏▎▍▌▋▊▉", "·", "│", "▁▂▃▄▅▆▇█")
#: For terminals and locales without more.
ASCII = Characters("#", " ", ".", "|", "_.-=+*%#")


def bar(part: float | None, mark: float | None, width: int, style: str, chars: Characters) -> Line:
    """A bar of `width` cells, `part` of them filled; a limit at `mark`, both from 0 to 1. None: not known."""
    filled = min(max(part or 0.0, 0.0), 1.0) * width
    whole = int(filled)
    cells = [(chars.full, style)] * whole
    rest = chars.parts[int((filled - whole) * len(chars.parts))] if whole < width else ""
    if rest.strip():
        cells.append((rest, style))
    cells += [(chars.empty, "dim")] * (width - len(cells))
    if mark is not None and 0 < mark < 1 and width:
        cells[min(int(mark * width), width - 1)] = (chars.mark, "mark")
    return joined(cells)


def sparkline(parts: Sequence[float], width: int, chars: Characters) -> str:
    """The last `width` of these parts, from 0 to 1, the newest at the right end."""
    top = len(chars.steps) - 1
    shown = "".join(chars.steps[round(min(max(part, 0.0), 1.0) * top)] for part in parts[-width:])
    return shown.rjust(width)


def joined(spans: Sequence[Span]) -> Line:
    """The spans as a line in which neighbours of one style are one span."""
    found: list[Span] = []
    for text, style in spans:
        if found and found[-1][1] == style:
            found[-1] = (found[-1][0] + text, style)
        elif text:
            found.append((text, style))
    return tuple(found)


def fitted_text(text: str, width: int) -> str:
    """`text` in exactly `width` cells. A character that takes not one of them, or moves the cursor, is a `?`."""
    plain = "".join(c if c.isprintable() and _cells(c) == 1 else "?" for c in text)
    return plain.ljust(width) if len(plain) <= width else f"{plain[: max(width - 2, 0)]}.."[:width]


def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def cut(line: Line, width: int) -> Line:
    """No more than `width` cells of a line."""
    found: list[Span] = []
    for text, style in line:
        if width <= 0:
            break
        found.append((text[:width], style))
        width -= len(text)
    return tuple(found)


def short_size(count: int) -> str:
    """Bytes in five characters at most: `0M`, `518M`, `4.0G`, `79.6G`, `141G`."""
    if 0 < count < 1 << 20:
        return "<1M"
    power = 1
    while count >= 999.5 * 1024 ** (power + 1) and power < len(UNITS):
        power += 1
    amount = count / 1024 ** (power + 1)
    digits = 0 if power == 1 or amount >= 99.95 else 1
    return f"{amount:.{digits}f}{UNITS[power - 1]}"
