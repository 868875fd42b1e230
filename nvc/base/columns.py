"""Columns of text, as wide as they need to be or as there is room. Pure."""

from __future__ import annotations

from nvc.base.types import Callable, Sequence

GAP = "  "
SHORT = 16  # characters that are left of a long cell at least
KEPT = 11  # characters at the end of a name that is cut: a model may end in `(simulated)`


def fitted(
    rows: Sequence[tuple[str, ...]],
    width: int,
    spare: tuple[str, ...] = (),
    tail: tuple[str, ...] = (),
    middle: tuple[str, ...] = (),
    short: int = SHORT,
) -> str:
    """Columns of equal width, names without control characters, in at most `width` columns; 0: any number.

    The first row has the names of the columns. First, columns in `spare` are left out one after another until the
    rest fits with `short` characters for each cell of the columns `tail` and `middle`. Then these are cut as far as
    needed: of `tail` the end is kept, of `middle` both ends. Lines that are still too long are cut at their end.
    """
    found = [clean(row) for row in rows]
    cuts: dict[str, Callable[[str, int], str]] = {
        **dict.fromkeys(tail, _end_of),
        **dict.fromkeys(middle, _ends_of),
    }
    for name in spare:
        if not width or _width([_shortened(row, found[0], cuts, short) for row in found]) <= width:
            break
        if name in found[0]:
            at = found[0].index(name)
            found = [row[:at] + row[at + 1 :] for row in found]
    over = _width(found) - width if width else 0
    for name, cut in cuts.items():
        if over > 0 and name in found[0]:
            at = found[0].index(name)
            longest = max(len(row[at]) for row in found)
            room = max(longest - over, min(short, SHORT))
            found = [(*row[:at], cut(row[at], room), *row[at + 1 :]) for row in found]
            over = _width(found) - width
    return "".join(
        f"{line if not width or len(line) <= width else line[: width - 1] + '…'}\n" for line in _lines(found)
    )


def clean(row: tuple[str, ...]) -> tuple[str, ...]:
    """Cells that a terminal shows as they are."""
    return tuple("".join(c if c.isprintable() else "?" for c in cell) for cell in row)


def _shortened(
    row: tuple[str, ...], head: tuple[str, ...], cuts: dict[str, Callable[[str, int], str]], short: int
) -> tuple[str, ...]:
    return tuple(cuts[name](cell, short) if name in cuts else cell for name, cell in zip(head, row))


def _end_of(cell: str, room: int) -> str:
    return cell if len(cell) <= room else f"..{cell[len(cell) - room + 2 :]}"


def _ends_of(cell: str, room: int) -> str:
    return cell if len(cell) <= room else f"{cell[: room - KEPT - 1]}…{cell[-KEPT:]}"


def _widths(rows: list[tuple[str, ...]]) -> list[int]:
    return [max(len(cell) for cell in column) for column in zip(*rows)]


def _width(rows: list[tuple[str, ...]]) -> int:
    return sum(_widths(rows)) + len(GAP) * (len(rows[0]) - 1)


def _lines(rows: list[tuple[str, ...]]) -> list[str]:
    widths = _widths(rows)
    return [GAP.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
