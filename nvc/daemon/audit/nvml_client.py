"""Asks NVML about devices and processes, through a helper process that may hang (nvml_process.py)."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from errno import EPIPE

from nvc.base import fastjson
from nvc.base.errors import one_line
from nvc.base.fastjson import PID, checked, row
from nvc.base.value import Value
from nvc.daemon.audit import nvml_process
from nvc.daemon.io import helper
from nvc.daemon.io.loop import SECOND, Loop, received
from nvc.slices.make.calibrate import Libraries
from nvc.slices.make.nvml import NAME_MAX

DEADLINE = 5 * SECOND
AGAIN = 30 * SECOND  # after it failed
ANSWER_MAX = 4 << 20
USE_PERIOD = 2 * SECOND  # between two questions for utilization: what NVML tells is the mean of that time
NOT_ASKED = -1
ENDED = "the process that asks has ended"
HANG_MAX = 4  # processes that were killed and cannot die; no more are begun until one has


class DeviceSeen(Value):
    """A GPU or MIG device as NVML shows it. Bytes and percent; -1: unknown."""

    uuid: str
    memory: int
    used: int
    busy: int
    memory_busy: int
    mode: int  # nvmlComputeMode_t
    processes: tuple[tuple[int, int], ...]  # number on the host, bytes
    sampled: int = NOT_ASKED  # for utilization; 0: NVML told of it, else nvmlReturn_t
    use: tuple[tuple[int, int], ...] = ()  # number on the host, percent of the time since it last told


_TOLD = range(-1, 1 << 63)
_SHAPE = [
    (DeviceSeen, str, _TOLD, _TOLD, _TOLD, _TOLD, _TOLD, [(row, PID, _TOLD)], _TOLD, [(row, PID, range(101))]),
]  # fmt: skip


def parse(data: bytes) -> tuple[DeviceSeen, ...]:
    """Parse an answer of nvml_process.py, which is untrusted: it ran the vendor's code. Raises ValueError."""
    answer = fastjson.parse(data, ANSWER_MAX)
    if isinstance(answer, str):
        raise ValueError(answer[:200])
    found: tuple[DeviceSeen, ...] = checked(answer, _SHAPE)
    for one in found:
        if not one.uuid.isascii() or not 0 < len(one.uuid) <= NAME_MAX:
            raise ValueError(f"not understood: {one.uuid[:80]}")
    # A process with two kinds of context is listed twice, each time with all that it has.
    return tuple(one.replace(processes=tuple(dict(sorted(one.processes)).items())) for one in found)


class NvmlClient:
    """Asks the helper process, and calls `told` with each answer and its time.

    After a glance it calls `changed` where other memory is in use than in the last answer.
    """

    def __init__(
        self, loop: Loop, told: Callable[[tuple[DeviceSeen, ...], int], None], changed: Callable[[int], object],
        log: Callable[[str], None], use: bool,
    ) -> None:  # fmt: skip
        """`use`: utilization by each process is wanted, which takes NVML twice as long as the rest."""
        self.use = use
        self.loop = loop
        self.told = told
        self.changed = changed
        self.log = log
        self.libraries: Libraries | None = None
        self.failures = self.answers = 0
        self.pid = 0
        self._socket: socket.socket | None = None
        self._asked = 0  # when; 0: nothing is under way
        self._question = b""
        self._used: dict[str, int] = {}  # bytes of each device, by the last answer
        self._not_before = 0
        self._use_asked = 0  # when utilization was last asked for
        self._data = b""
        self._problem = ""
        self._unreaped: list[int] = []

    def ask(self, now: int) -> bool:
        """Ask for everything, unless a question is unanswered. Returns whether that was sent."""
        with_use = self.use and now - self._use_asked >= USE_PERIOD
        if not self._send(nvml_process.WITH_USE if with_use else nvml_process.PLAIN, now):
            return False
        if with_use:
            self._use_asked = now
        return True

    def glance(self, now: int) -> bool:
        """Ask only whether as much memory is in use as before, likewise."""
        return self._send(nvml_process.GLANCE, now)

    def _send(self, question: bytes, now: int) -> bool:
        if self._asked:
            if now - self._asked > DEADLINE:
                self._fail(f"no answer within {DEADLINE // SECOND} s", now)
            return False
        if self.libraries is None or now < self._not_before:
            return False
        self._reap()
        if len(self._unreaped) >= HANG_MAX:
            return False
        try:
            if self._socket is None:
                self.pid, self._socket = nvml_process.start(self.libraries)
                self.loop.add(self._socket.fileno(), self._ready)
            self._socket.send(question)
        except OSError as error:
            self._fail(ENDED if error.errno == EPIPE else str(error), now)
            return False
        self._asked, self._question, self._data = now, question, b""
        return True

    def _ready(self, now: int) -> None:
        assert self._socket is not None
        data = received(self._socket, 1 << 16)
        if data is None:
            return
        if not data:
            self._fail(ENDED, now)
            return
        self._data += data
        size = int.from_bytes(self._data[:4], "little")
        if size > ANSWER_MAX or not self._asked:
            self._fail("an answer that makes no sense", now)
        elif len(self._data) >= 4 + size:
            self._asked = 0
            try:
                found = parse(self._data[4 : 4 + size])
            except ValueError as error:
                self._fail(str(error), now)
                return
            self._data, self._problem = b"", ""
            used = {one.uuid: one.used for one in found}
            if self._question == nvml_process.GLANCE:
                if not used.items() <= self._used.items():
                    self.changed(now)
                return
            self.answers += 1
            self._used = used
            self.told(found, now)

    def _fail(self, problem: str, now: int) -> None:
        """End the helper process; the next question after AGAIN starts another."""
        self.failures += 1
        self._not_before = now + AGAIN
        if problem != self._problem:
            self._problem = problem
            self.log(f"NVML: {one_line(problem)}; asked again in {AGAIN // SECOND} s")
        self.close()

    def close(self) -> None:
        """Kill the helper process, and expect no answer."""
        self._asked, self._data = 0, b""
        if self._socket is not None:
            helper.end(self.loop, self.pid, self._socket)
            self._unreaped.append(self.pid)
            self.pid, self._socket = 0, None
        self._reap()

    def _reap(self) -> None:
        """Reap the helpers that have ended; one that hangs in the driver cannot yet."""
        self._unreaped = [pid for pid in self._unreaped if os.waitpid(pid, os.WNOHANG)[0] == 0]
