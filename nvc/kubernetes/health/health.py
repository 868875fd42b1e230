"""From what NVML says to what is wrong with each GPU, and when that is over.

What NVML shows as a state is wrong as long as it shows it: a GPU that is lost, memory that waits for remapping. An
event has no end that NVML would tell: an Xid counts until the GPU has been quiet for a while, and one that only a
reset mends until the GPU was away or the plugin starts again, as a reset takes. Xids that programs cause by their
own mistakes count for nothing.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from nvc.base import fastjson
from nvc.base.errors import one_line
from nvc.base.fastjson import NUMBER, checked, row
from nvc.base.value import Value
from nvc.kubernetes.health.board import HEALTHY, UNHEALTHY, UNKNOWN, Board, Condition, Problem
from nvc.slices.make.calibrate import Libraries

#: Seconds without a round, beside the time between two, after which nothing is known.
SILENCE = 35.0
#: Of NVIDIA's list of Xids: faults of programs; and those that only a reset of the GPU mends.
OF_PROGRAMS = frozenset((13, 31, 43, 45, 68, 109))
UNTIL_RESET = frozenset((48, 62, 64, 74, 79, 95, 119, 120, 140, 143))
LINE_MAX = 1 << 18  # bytes of what is told at once


class Seen(Value):
    """One GPU in one round of NVML. -1: not told."""

    lost: bool
    ecc: int  # uncorrected errors since the driver was loaded
    remapping: int  # 1: pending, 2: failed
    events: bool  # whether Xids are told


class Figures(Value):
    """What monitoring shows of a GPU; -1: not told."""

    used: int  # bytes
    total: int
    busy: int  # percent
    copy: int  # percent of the time with traffic to its memory
    celsius: int
    milliwatt: int
    sm_mhz: int
    memory_mhz: int


class Round(Value):
    """All GPUs at one moment."""

    gpus: dict[str, Seen]
    figures: dict[str, Figures]
    profiles: dict[str, str]  # of MIG devices by UUID
    problem: str = ""


_TOLD = range(-1, 1 << 63)
_GPUS = [(row, str, bool, _TOLD, _TOLD, bool, (Figures, *[_TOLD] * 8), [(row, str, str)])]


def parse(line: bytes) -> Round | tuple[str, int]:
    """What the process that runs the vendor's code has written: a round, or a GPU and its Xid.

    Raises ValueError.
    """
    told = fastjson.parse(line, LINE_MAX)
    if isinstance(told, str):
        return Round({}, {}, {}, one_line(told))
    if isinstance(told, dict):
        uuid, number = checked(told.get("xid"), (row, str, NUMBER))
        return _checked_uuid(uuid), int(number)
    gpus, figures, profiles = {}, {}, {}
    for uuid, lost, ecc, remapping, events, own, parts in checked(told, _GPUS):
        gpus[_checked_uuid(uuid)], figures[uuid] = Seen(lost, ecc, remapping, events), own
        for part, profile in parts:
            if not profile.replace(".", "").replace("+", "").isalnum():
                raise ValueError(f"not understood: {profile[:80]}")
            profiles[_checked_uuid(part)] = profile
    return Round(gpus, figures, profiles)


def _checked_uuid(uuid: str) -> str:
    if not (uuid.isascii() and uuid.isprintable() and 0 < len(uuid) <= 96):
        raise ValueError(f"not understood: {uuid[:80]}")
    return uuid


class Judge:
    """Remembers events and counters, and says what is wrong. One thread uses it."""

    def __init__(self, quiet: float) -> None:
        """A GPU is well again `quiet` seconds after its last event."""
        self.quiet = quiet
        self._xids: dict[tuple[str, int], float] = {}
        self._ecc: dict[str, tuple[int, float]] = {}  # errors, and when there were more than before

    def xid(self, uuid: str, number: int, now: float) -> None:
        """An Xid has come."""
        if number not in OF_PROGRAMS:
            self._xids[uuid, number] = now

    def conditions(self, known: tuple[str, ...], found: Round, now: float) -> dict[str, Condition]:
        """The condition of each GPU that the node is known to have, by UUID."""
        if found.problem:
            return {uuid: Condition(UNKNOWN, reason=f"NVML: {found.problem}") for uuid in known}
        return {uuid: self._condition(uuid, found.gpus.get(uuid), now) for uuid in known}

    def _condition(self, uuid: str, seen: Seen | None, now: float) -> Condition:
        if seen is None or seen.lost:
            # Back from there it has been reset.
            self._xids = {one: at for one, at in self._xids.items() if one[0] != uuid}
            self._ecc.pop(uuid, None)
            return Condition(UNHEALTHY, (Problem("lost", "", "NVML has lost the GPU", evict=True),))
        problems = []
        if seen.remapping > 0:
            value, text = ("pending", "waits for a reset") if seen.remapping == 1 else ("failed", "has failed")
            problems.append(Problem("remapping", value, f"remapping of its memory {text}"))
        before, since = self._ecc.get(uuid, (seen.ecc, now - self.quiet))
        if seen.ecc > before:
            since = now
        self._ecc[uuid] = seen.ecc, since
        if seen.ecc > 0 and now - since < self.quiet:
            problems.append(Problem("ecc", str(seen.ecc), f"{seen.ecc} uncorrected memory errors"))
        for (own, number), at in sorted(self._xids.items()):
            if own == uuid and (number in UNTIL_RESET or now - at < self.quiet):
                problems.append(Problem("xid", str(number), f"Xid {number}"))
        if problems:
            return Condition(UNHEALTHY, tuple(problems))
        return Condition(HEALTHY, reason="" if seen.events else "the driver does not tell of Xids")


@dataclass
class Monitor:
    """The thread that reads what NVML says, and keeps the board."""

    channel: socket.socket  # of `nvml.start`
    board: Board
    gpus: Callable[[], tuple[str, ...]]  # the node's UUIDs
    changed: Callable[[], None]  # called after each change
    log: Callable[[str], None]
    quiet: float  # seconds after which an event is over
    interval: float  # seconds from one question to the next

    def __post_init__(self) -> None:
        self.judge = Judge(self.quiet)
        self.round = Round({}, {}, {}, "not asked yet")
        self.answered = False  # or known not to answer
        self.profiles: dict[str, str] = {}  # of MIG devices, as NVML told last
        self._there: frozenset[str] = frozenset()  # UUIDs of GPUs, likewise
        self.xids: dict[str, int] = {}  # the last one of each GPU
        self._told: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self.channel.settimeout(SILENCE + self.interval)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self, libraries: Libraries) -> None:
        """Have the process ask this NVML, and begin to read."""
        lines = f"{libraries.root}\n{libraries.nvml}\n{self.interval}\n"
        self.channel.sendall(lines.encode("utf-8", "surrogateescape"))
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                with self.channel.makefile("rb") as stream:
                    self._read(stream)
                problem = "the process that asks NVML has ended"
            except TimeoutError:
                self._unknown("does not answer")
                continue
            except OSError as error:
                problem = str(error)
            self._unknown(problem)
            self.log(f"health is not monitored any more: {problem}")
            return

    def _read(self, stream: BinaryIO) -> None:
        while line := stream.readline(LINE_MAX):
            try:
                self._take(parse(line))
            except ValueError as error:
                self._unknown(str(error))

    def _unknown(self, problem: str) -> None:
        self._take(Round({}, {}, {}, problem))

    def _take(self, told: Round | tuple[str, int]) -> None:
        before = (self.answered, self.profiles, self._there)
        if isinstance(told, Round):
            self.round, self.answered = told, True
            if not told.problem:
                self.profiles, self._there = told.profiles, frozenset(told.gpus)
        else:
            uuid, number = told
            self.xids[uuid] = number
            self.judge.xid(uuid, number, time.monotonic())
        self._judge()
        if before != (self.answered, self.profiles, self._there):
            self.changed()  # the node has other devices: MIG devices were made or removed

    def _judge(self) -> None:
        found = self.judge.conditions(self.gpus(), self.round, time.monotonic())
        if self.board.set(found):
            for uuid, condition in found.items():
                text = f"{condition.health}: {condition.text}" if condition.text else condition.health
                if self._told.get(uuid) != text:
                    self.log(f"{uuid} is {text}")
                self._told[uuid] = text
            self.changed()
