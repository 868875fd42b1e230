"""Which slices are suspended, or on the way there or back: what nvcd keeps of them, for itself and everybody.

    /run/nvc/suspend/<key>    lines of `name value`; gone once the slice runs again

The file is whole or not there. It names each process, when that began, and what it had of each device.
"""

from __future__ import annotations

import os

from nvc.base.errors import one_line
from nvc.base.files import lines_of, replace_file
from nvc.base.rundir import runtime_directory
from nvc.base.value import Value
from nvc.model.slices.entry import open_own

SUSPENDING, SUSPENDED, RESUMING, FAILED = STATES = ("suspending", "suspended", "resuming", "failed")
#: What a slice was suspended for: it did nothing, another one needed its room, somebody has asked.
IDLE, ROOM, ASKED = "idle", "room", "asked"
HOST_SPARE = 1 << 30  # bytes of the host's memory that are left to others
_MOST = 1 << 20  # bytes
_MODE = 0o600


class Saved(Value):
    """What one process had of one device."""

    pid: int
    start: int  # clock ticks since boot
    uuid: str
    bytes: int
    stays: int = 0  # of these, what is on the device all the time

    @property
    def moved(self) -> int:
        """What leaves."""
        return self.bytes - self.stays


class Suspension(Value):
    """One slice that does not run."""

    key: str
    state: str
    since: int  # seconds since the epoch
    saved: tuple[Saved, ...]
    problem: str = ""  # why it is not on its way any more
    why: str = ""  # IDLE, ROOM, ASKED; "": an older nvcd does not say
    by: str = ""  # `swap`: its programs move what they can, and the rest stays; "": the driver moves all

    @property
    def bytes(self) -> int:
        """What is moved of what all processes had of all devices."""
        return sum(one.moved for one in self.saved)

    @property
    def is_away(self) -> bool:
        """Whether its memory is in the host's. Of one that leaves it counts as on the devices."""
        return self.state != SUSPENDING

    def moved(self, uuid: str) -> int:
        """What is in the host's memory of what all processes had of a device."""
        here = self.saved if self.is_away else ()
        return sum(one.moved for one in here if one.uuid.lower() == uuid.lower())

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes."""
        return tuple(sorted({one.pid for one in self.saved}))


def write(one: Suspension) -> None:
    """Keep it. Raises OSError."""
    lines = [f"state {one.state}", f"since {one.since}"]
    lines += [f"saved {each.pid} {each.start} {each.uuid} {each.bytes} {each.stays}" for each in one.saved]
    lines += [f"problem {one_line(one.problem)}"] if one.problem else []
    lines += [f"{name} {text}" for name, text in (("why", one.why), ("by", one.by)) if text]
    text = "".join(f"{line}\n" for line in lines)
    replace_file(f"{_directory()}/{one.key}", text.encode("utf-8", "replace"), _MODE, sync=False)


def forget(key: str) -> None:
    """It runs again, or is gone."""
    try:
        os.unlink(f"{_directory()}/{key}")
    except FileNotFoundError:
        pass


def suspensions() -> dict[str, Suspension]:
    """All of them, by key. What cannot be read counts as failed: its `problem` says why."""
    base = _directory()
    found = {}
    for key in os.listdir(base) if base else ():
        if key.startswith("."):  # not whole yet
            continue
        try:
            found[key] = _read(f"{base}/{key}", key)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            found[key] = Suspension(key, FAILED, 0, (), f"{base}/{key}: {one_line(error)}")
    return found


def _read(path: str, key: str) -> Suspension:
    fd = open_own(path)
    try:
        text = os.read(fd, _MOST).decode("utf-8")
    finally:
        os.close(fd)
    values = {"state": "", "since": "", "problem": "", "why": "", "by": ""}
    saved = []
    for line in lines_of(text):
        name, _, value = line.partition(" ")
        if name == "saved":
            pid, start, uuid, count, stays = value.split(" ")
            saved.append(Saved(int(pid), int(start), uuid, int(count), int(stays)))
        elif name in values:
            values[name] = value
    if values["state"] not in STATES:
        raise ValueError(f"the state is {values['state']!r}")
    since, rest = int(values.pop("since")), {name: values[name] for name in ("problem", "why", "by")}
    return Suspension(key, values["state"], since, tuple(saved), **rest)


def _directory() -> str:
    return runtime_directory("suspend")
