"""The interactive `top` as lines of a terminal of any size. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable

from nvc.base.errors import counted
from nvc.base.value import Value
from nvc.model.slices.policy import policy_of
from nvc.slices.policy.utilization import percent
from nvc.slices.show.bars import Characters, Line, bar, cut, fitted_text, short_size, sparkline
from nvc.slices.show.rows import CELLS, DeviceSums, Row, pid_text, sums_of
from nvc.slices.show.tables import enforcement
from nvc.slices.show.view import Picture, View, ordered

LEAST_WIDTH, LEAST_HEIGHT = 40, 8
LEAST_BAR = 4
MOST_WARNINGS = 2
KEYS = "q quit  ? help  m memory  t time  n name  r reverse  a gone  p processes"
STATE_STYLES = {
    "busy": "good",
    "capped": "high",
    "waiting": "high",
    "paused": "bad",
    "denied": "bad",
    "failed": "bad",
    "suspending": "dim",
    "suspended": "dim",
    "resuming": "dim",
    "gone": "dim",
}
HELP = """\
q Esc Ctrl-C   quit               ? h   this help; any key goes back
m   order by memory in use        a     show slices that are gone, or hide them
t   by GPU time                   p     show processes, or hide them
w   by time in which it waited    r     reverse the order
n   by name                       s     next order
g   by GPU                        arrows, j k, Page Up, Page Down, Home, End
o   by age, the oldest first            scroll

A memory bar is as long as the slice's limit. A time bar is all of the GPU's
time; its mark is the slice's entitlement. In the lines of a GPU, the marks are
the sums over its slices.

STATE   busy     has the GPU             paused   by an operator
        waiting  has had its part        denied   the slice cannot use the GPU
        capped   has reached its cap     idle     launches nothing
        gone     no process is left      -        time is not measured:
                                                  no cap, no nvcd, or native"""


class Column(Value):
    """One column of slices."""

    title: str
    rank: int  # those of lower rank stay where there is little room
    least: int  # cells
    most: int  # what it can make use of
    cell: Callable[[Row, int], Line]


def frame(picture: Picture, view: View, width: int, height: int) -> tuple[Line, ...]:
    """At most `height` lines of at most `width` cells."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        text = f"needs {LEAST_WIDTH}x{LEAST_HEIGHT}"
        return (((text[:width], "bad"),),) if height else ()
    head = [_title(picture, view, width)]
    notes = (*picture.warnings, *enforcement(picture.everybody).splitlines())
    for warning in notes[:MOST_WARNINGS]:
        head.append(((fitted_text(warning, width), "bad"),))
    if view.help:
        body: list[Line] = [((line, ""),) for line in HELP.splitlines()]
        first = 0
    else:
        head += _devices(picture, view, width, (height - len(head)) // 2)
        titles, body = _body(picture, view, width)
        head += [(), titles] if body else []
        first = view.first
    room = height - len(head) - 1
    body = body or [(), ((_nothing(picture), ""),)]
    first = min(first, max(len(body) - 1, 0))
    below = len(body) - first - room
    shown = body[first : first + room]
    if below > 0:
        shown[-1:] = [((f"... {below + 1} lines more below", "dim"),)]
    lines = [*head, *shown]
    lines += [()] * (height - 1 - len(lines))
    return (*(cut(line, width) for line in lines), ((fitted_text(KEYS, width), "selected"),))


def body_length(picture: Picture, view: View) -> int:
    """How many lines there are in which one may move."""
    return len(_body(picture, view, LEAST_WIDTH)[1])


def _title(picture: Picture, view: View, width: int) -> Line:
    clock = time.strftime("%H:%M:%S", time.localtime(picture.now))
    running = sum(tenant.alive for tenant in picture.everybody)
    gone = len(picture.everybody) - running
    text = f"nvc-cli vgpu top  {clock}  every {picture.interval:g} s  {running} running"
    text += f", {gone} gone" if gone else ""
    order = f"sorted by {view.sort}{', reversed' if view.reverse else ''}"
    return ((fitted_text(text, width - len(order) - 2) + f"  {order}", "head"),)


def _nothing(picture: Picture) -> str:
    if picture.everybody:
        return "No slice is running; `a` shows those that are gone."
    return "There are no slices. `nvc-cli vgpu run --memory 4GiB -- nvc-spin` makes one."


def _devices(picture: Picture, view: View, width: int, room: int) -> list[Line]:
    """Two lines for each GPU; one if space is short; none if there is no space."""
    sharing = sums_of(ordered(picture, view.replace(gone=False)), picture.devices)
    lines: list[Line] = []
    short = len(sharing) * 2 > room
    for place, sums in enumerate(sharing):
        if short and place == room - 1 and len(sharing) > room:
            lines.append(((f"... {len(sharing) - place} GPUs more", "dim"),))
            break
        lines += _device(sums, picture, view.chars, width, short)
    return lines


def _device(sums: DeviceSums, picture: Picture, chars: Characters, width: int, short: bool) -> list[Line]:
    time_part = None if sums.utilized is None else min(sums.utilized, 1.0)
    memory_part = sums.used / sums.memory if sums.memory else None
    total = short_size(sums.memory) if sums.memory else "?"
    memory = f"{short_size(sums.used)}/{total}"
    count = counted(len(sums.rows), "slice")
    head = f"GPU {sums.index}"
    before = f"{head:<8}" if short else "  memory "
    after = f"  {count}" if short else " "
    # What is left out where it does not fit: a part of a number would be another number.
    ends = [before, f" {memory:<11}", "  time ", f" {percent(time_part):>6}", after]
    while len("".join(ends)) + 2 * LEAST_BAR > width and len(ends) > 3:
        del ends[-1 if ends[-1] is after else 1]
    bars = 2 if short or ends[-1] is not after else 3
    cells = max((width - len("".join(ends))) // bars, LEAST_BAR)
    promised = sums.promised / sums.memory if sums.memory else None
    line: list[tuple[str, str]] = [(before, "head" if short else "")]
    line += bar(memory_part, promised, cells, _fullness(memory_part), chars)
    line.append(("".join(ends[1 : ends.index("  time ") + 1]), ""))
    line += bar(time_part, sums.entitled, cells, "good", chars)
    line.append(("".join(ends[ends.index("  time ") + 1 :]), ""))
    if short:
        return [tuple(line)]
    rest = f"{total}, policy {_policy(sums)}, {count}" if sums.rows else f"{total}, no slice"
    rest += f", {short_size(sums.reserved)} reserved" if sums.reserved else ""
    name = f"{head}  {sums.name or '?'}  "
    title = ((fitted_text(name, min(len(name), max(width - len(rest), len(head) + 2))), "head"), (rest, ""))
    past = sparkline(picture.past.get(("", sums.uuid), ()), cells, chars) if bars == 3 else ""
    return [title, (*line, (past, "good"))]


def _policy(sums: DeviceSums) -> str:
    """Timed slices have one policy in force; beside them others may have `native` or `concurrent`."""
    known = [policy_of(row.device.policy) for row in sums.rows]
    return max(known, key=lambda one: (one.timed, one.server)).name


def _fullness(part: float | None) -> str:
    return "bad" if part and part >= 0.95 else "high" if part and part >= 0.8 else "good"


def _body(picture: Picture, view: View, width: int) -> tuple[Line, list[Line]]:
    """Titles of the columns, and what can be moved: slices, then processes."""
    rows = ordered(picture, view)
    columns = _chosen(_columns(rows, picture, view.chars), width)
    titles = " ".join(fitted_text(column.title, cells) for column, cells in columns)
    lines: list[Line] = []
    for row in rows:
        spans: list[tuple[str, str]] = []
        for column, cells in columns:
            spans += [*column.cell(row, cells), (" ", "")]
        plain = "dim" if not row.tenant.alive else ""
        lines.append(tuple((text, style or plain) for text, style in spans[:-1]))
    if view.processes and rows:
        lines += _processes(rows, width)
    return ((titles, "head"),), lines


def _processes(rows: list[Row], width: int) -> list[Line]:
    found: list[Line] = []
    seen = {row.tenant.entry.key: row.tenant for row in rows}
    cells = max(len(tenant.name) for tenant in seen.values())
    for tenant in seen.values():
        for account in tenant.accounts:
            for device, used in zip(tenant.devices, account.used):
                if used:
                    text = f"{pid_text(account):>7} {device.index:<6} {short_size(used):>6}  "
                    text += f"{fitted_text(tenant.name, min(cells, width // 2))}  {account.name}"
                    found.append(((fitted_text(text, width), ""),))
    head = fitted_text(
        f"{'PID':>7} {'DEVICE':<6} {'USED':>6}  {'SLICE':<{min(cells, width // 2)}}  NAME", width
    )
    return [(), ((head, "head"),), *found] if found else []


def _columns(rows: list[Row], picture: Picture, chars: Characters) -> list[Column]:
    def text(column: str, right: bool = False) -> Callable[[Row, int], Line]:
        def cell(row: Row, cells: int) -> Line:
            shown = CELLS[column](row, picture.now)
            return (((shown.rjust(cells) if right else fitted_text(shown, cells))[:cells], ""),)

        return cell

    def memory(row: Row, cells: int) -> Line:
        part = row.used / row.limit if row.used is not None and row.limit else None
        return bar(part, None, cells, _fullness(part), chars)

    def gpu_time(row: Row, cells: int) -> Line:
        style = "high" if row.state in ("capped", "waiting") else "good"
        return bar(row.received, row.device.entitlement, cells, style, chars)

    def doing(row: Row, cells: int) -> Line:
        return ((fitted_text(row.state, cells), STATE_STYLES.get(row.state, "")),)

    names = max((len(row.tenant.name) for row in rows), default=0)
    origins = max((len(row.tenant.origin) for row in rows), default=0)
    return [
        Column("SLICE", 0, 8, max(min(names, 32), 10), text("SLICE")),
        Column("DEVICE", 1, 6, 6, text("DEVICE")),
        Column("MEMORY", 5, 10, 30, memory),
        Column("USED/LIMIT", 3, 11, 11, lambda row, cells: ((fitted_text(row.memory_text, cells)[:cells], ""),)),
        Column("UTILIZED", 4, 10, 30, gpu_time),
        Column("", 2, 6, 6, text("UTILIZED", True)),
        Column("HISTORY", 6, 8, 60, lambda row, cells: ((sparkline(row.past, cells, chars), "good"),)),
        Column("STATE", 1, 7, 7, doing),
        Column("CORES", 7, 7, 7, text("CORES")),
        Column("WAITED", 8, 6, 6, text("WAITED", True)),
        Column("POLICY", 9, 7, 15, text("POLICY")),
        Column("WEIGHT", 10, 6, 6, text("WEIGHT")),
        Column("PROCESSES", 11, 9, 9, text("PROCESSES")),
        Column("AGE", 12, 4, 4, text("AGE", True)),
        Column("CONTAINER", 13, 16, max(origins, 16), text("CONTAINER")),
    ]


def _chosen(columns: list[Column], width: int) -> list[tuple[Column, int]]:
    """The columns for which there is room, the more important ones first, and how wide they are."""
    chosen: list[Column] = []
    for column in sorted(columns, key=lambda column: column.rank):
        if sum(one.least + 1 for one in (*chosen, column)) - 1 > width:
            break
        chosen.append(column)
    cells = {column.title: column.least for column in chosen}
    left = width - sum(column.least + 1 for column in chosen) + 1
    growing = [column for column in chosen if column.most > column.least]
    while left > 0 and growing:
        for column in growing:
            if left > 0 and cells[column.title] < column.most:
                cells[column.title] += 1
                left -= 1
        growing = [column for column in growing if cells[column.title] < column.most]
    return [(column, cells[column.title]) for column in columns if column in chosen]
