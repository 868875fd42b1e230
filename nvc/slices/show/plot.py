"""Draws utilization over time as SVG. Pure."""

from __future__ import annotations

from nvc.slices.show.history import Track

WIDTH, HEIGHT = 900, 420  # of the drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 44, 48
#: Colours that are told apart also by who sees no red or no green (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")
LINE = 18  # between two lines of the legend
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
TICKS = 10  # at most, below


def svg(title: str, tracks: tuple[Track, ...], seconds: float) -> str:
    """The drawing of `seconds`, shares from 0 to at least 100 % upwards; entitlements with dashes."""
    most = max((part for one in tracks for _, part in one.points), default=0.0)
    top = 1.0 if most <= 1.05 else int(most * 10 + 1) / 10
    height = HEIGHT + LINE * len(tracks)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escaped(title)}</text>',
    ]

    def x(second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(second / max(seconds, 1e-9), 1)

    def y(part: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part / top

    for number in range(int(top * 10 + 0.5) + 1):
        part = number / 10
        heavy = number % 5 == 0
        parts.append(_rule(LEFT, y(part), WIDTH - RIGHT, y(part), "#bbb" if heavy else "#eee"))
        if number % 2 == 0 or heavy:
            parts.append(_label(LEFT - 6, y(part) + 4, f"{number * 10}%", "end"))
    step = next((step for step in STEPS if seconds / step <= TICKS), STEPS[-1])
    for tick in range(int(seconds / step + 1e-9) + 1):
        parts.append(_rule(x(tick * step), y(0), x(tick * step), y(0) + 5, "#444"))
        parts.append(_label(x(tick * step), y(0) + 18, f"{tick * step:g} s", "middle"))
    for number, one in enumerate(tracks):
        colour = COLOURS[number % len(COLOURS)]
        dashes = '" stroke-dasharray="5 4" stroke-opacity="0.7'
        parts.append(_line([(x(a), y(b)) for a, b in one.entitlement], colour + dashes))
        parts.append(_line([(x(a), y(min(b, top))) for a, b in one.points], colour))
        base = HEIGHT + LINE * number
        parts.append(_rule(LEFT, base - 4, LEFT + 24, base - 4, colour, 3))
        parts.append(_label(LEFT + 32, base, f"{one.name}: {one.mean * 100:.1f}% received", "start"))
    return "\n".join([*(part for part in parts if part), "</svg>", ""])


def escaped(text: str) -> str:
    """`text` inside an XML element: no name of a file or program can become a tag, or break the file."""
    known = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
    return "".join(known.get(c, c if c.isprintable() else "?") for c in text)


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _line(points: list[tuple[float, float]], colour: str) -> str:
    if not points:
        return ""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke-width="1.6" stroke="{colour}"/>'
