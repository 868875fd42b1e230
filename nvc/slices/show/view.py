"""The state of the interactive `top`, and how keys change it. Pure."""

from __future__ import annotations

from nvc.base.value import Value
from nvc.model.slices.slice import SliceDevice
from nvc.slices.policy.utilization import Received
from nvc.slices.show.bars import ASCII, Characters
from nvc.slices.show.rows import Row, numbers_of, rows_of
from nvc.slices.store.status import SliceStatus

#: By the key that chooses it: a name, and whether most comes first.
SORTS = {
    "o": ("age", False),
    "n": ("name", False),
    "g": ("GPU", False),
    "m": ("memory", True),
    "t": ("time", True),
    "w": ("waited", True),
}
QUIT = ("q", "Q", "escape")
MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}


class View(Value):
    """What the operator has chosen to see."""

    sort: str = "age"
    reverse: bool = False
    gone: bool = False  # slices without a process too
    processes: bool = True
    help: bool = False
    first: int = 0  # lines above what is shown
    chars: Characters = ASCII


class Picture(Value):
    """Slices at one moment, and how it came to that."""

    everybody: tuple[SliceStatus, ...]
    received: dict[tuple[str, str], Received]  # since the picture before, by key and UUID
    #: The last shares, by the slice's key and the device's UUID; for all of a device's slices the key is "".
    past: dict[tuple[str, str], tuple[float, ...]]
    now: float  # seconds since the epoch
    interval: float  # seconds
    warnings: tuple[str, ...] = ()  # what could not be read
    devices: tuple[SliceDevice, ...] = ()  # of the host, with slices and without


def ordered(picture: Picture, view: View) -> list[Row]:
    """The rows that are shown, in their order: slices that live, then those that are gone."""
    shown = tuple(tenant for tenant in picture.everybody if tenant.alive or view.gone)
    found = rows_of(shown, picture.received, picture.past)
    most_first = next(most for name, most in SORTS.values() if name == view.sort)
    found.sort(key=lambda row: _order(row, view.sort), reverse=most_first != view.reverse)
    return sorted(found, key=lambda row: not row.tenant.alive)  # sorted() keeps the order of equals


def _order(row: Row, sort: str) -> tuple[float | str, ...]:
    if sort == "memory":
        return (row.used or 0,)
    if sort == "time":
        return (row.received or 0.0,)
    if sort == "waited":
        return (row.had.waited if row.had else 0.0,)
    if sort == "name":
        return (row.tenant.name, row.device.index)
    if sort == "GPU":
        return (*numbers_of(row.device.index), row.tenant.entry.created)
    return (
        row.tenant.entry.created,
        row.tenant.entry.start,
        row.tenant.entry.key,
        *numbers_of(row.device.index),
    )


def pressed(view: View, key: str, lines: int) -> View | None:
    """The view after a key: a character, or the name of another key. None: the operator wants to leave.

    `lines` is how many there are to scroll in.
    """
    if key in QUIT:
        return None
    return view.replace(**_changes(view, key, lines))


def _changes(view: View, key: str, lines: int) -> dict[str, object]:
    if view.help:
        return {"help": False}
    if key in SORTS:
        return {"sort": SORTS[key][0], "reverse": False, "first": 0}
    if key in MOVES:
        return {"first": max(min(view.first + MOVES[key], lines - 1), 0)}
    if key == "s":
        names = [name for name, _ in SORTS.values()]
        return {"sort": names[(names.index(view.sort) + 1) % len(names)], "reverse": False, "first": 0}
    changes: dict[str, dict[str, object]] = {
        "?": {"help": True},
        "h": {"help": True},
        "r": {"reverse": not view.reverse},
        "a": {"gone": not view.gone, "first": 0},
        "p": {"processes": not view.processes, "first": 0},
        "home": {"first": 0},
        "end": {"first": max(lines - 1, 0)},
    }
    return changes.get(key, {})
