"""Columns of text, as wide as they need to be or as there is room. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = "  "
SHORT = 16  # characters that are left of a long cell at least


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns of equal width, names without control characters."""
    return "".join(f"{line}\n" for line in _lines([clean(row) for row in rows]))


def fitted(
    rows: Sequence[tuple[str, ...]], width: int, spare: tuple[str, ...] = (), tail: tuple[str, ...] = ()
) -> str:
    """The same in at most `width` columns, 0 being as many as there are.

    The first row has the names of the columns. Of long cells in the columns `tail` only the end is kept; those in
    `spare` are left out one after another until the rest fits. What is wider still is cut.
    """
    found = [clean(row) for row in rows]
    for name in spare:
        if not width or _width([_shortened(row, found[0], tail) for row in found]) <= width:
            break
        if name in found[0]:
            at = found[0].index(name)
            found = [row[:at] + row[at + 1 :] for row in found]
    over = _width(found) - width if width else 0
    for name in tail:
        if over > 0 and name in found[0]:
            at = found[0].index(name)
            longest = max(len(row[at]) for row in found)
            room = max(longest - over, SHORT)
            found = [(*row[:at], _end_of(row[at], room), *row[at + 1 :]) for row in found]
            over = _width(found) - width
    lines = _lines(found)
    return "".join(f"{line[:width] if width else line}\n" for line in lines)


def clean(row: tuple[str, ...]) -> tuple[str, ...]:
    """Cells that a terminal shows as they are."""
    return tuple("".join(c if c.isprintable() else "?" for c in cell) for cell in row)


def _shortened(row: tuple[str, ...], head: tuple[str, ...], tail: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_end_of(cell, SHORT) if name in tail else cell for name, cell in zip(head, row))


def _end_of(cell: str, room: int) -> str:
    return cell if len(cell) <= room else f"..{cell[len(cell) - room + 2 :]}"


def _widths(rows: list[tuple[str, ...]]) -> list[int]:
    return [max(len(cell) for cell in column) for column in zip(*rows)]


def _width(rows: list[tuple[str, ...]]) -> int:
    return sum(_widths(rows)) + len(GAP) * (len(rows[0]) - 1)


def _lines(rows: list[tuple[str, ...]]) -> list[str]:
    widths = _widths(rows)
    return [GAP.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
