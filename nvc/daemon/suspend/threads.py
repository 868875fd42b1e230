"""What the threads of a process are at, as /proc shows it, while the driver has the process locked.

Driver 580 holds up most calls of a locked process, but not those that ask what the device has done, and these fault
once the memory is away (native/vgpu/charge/resident.h). The shim lets none begin from SEEN seconds after nvcd has
said so in the quota. One that began before has ended once its thread has run on, or sleeps: what it waits for has
ended with the lock.

A call that is held up waits for a futex in libcuda: its return address is among the first words of the stack. With
driver 580 it is the seventh or ninth, and further down for the driver's own threads that wait for work.
"""

from __future__ import annotations

import os
import platform
import struct
import time
from collections.abc import Callable

from nvc.base.files import closing, lines_of
from nvc.slices.store.process_info import ENDED

SEEN = 0.06  # seconds: three times what the shim goes without a look at the quota
PATIENCE = 5.0
_STEP = 0.005
_WOKEN = 0.01  # who sleeps until work has ended runs by then, or is to
_ENOUGH = 2_000_000  # nanoseconds in which a query ends
_MAPS_MAX = 8 << 20
_NEAR = 16 * 8  # bytes of a stack
_FUTEX = {"x86_64": "202", "aarch64": "98"}
_LIBRARY = "libcuda.so"


class Threads:
    """Tells what the threads of a process are at. Raises OSError where /proc cannot be opened."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = os.open(proc, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # a chroot may have none

    def have_left(self, pid: int, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Wait until no thread is in a call any more that began before SEEN seconds ago; False: one stays."""
        sleep(_WOKEN)
        waiting = self._ran(pid)
        for _ in range(int(PATIENCE / _STEP)):
            if not waiting:
                return True
            sleep(_STEP)
            now = self._ran(pid)
            waiting = {tid: ran for tid, ran in waiting.items() if tid in now and now[tid] - ran < _ENOUGH}
        return False

    def _ran(self, pid: int) -> dict[int, int]:
        """Nanoseconds for which each thread has run that does not sleep."""
        found = {}
        for tid in self._list(pid):
            state = self._text(f"{pid}/task/{tid}/stat").rpartition(")")[2].split(" ")[1:2]
            ran = self._text(f"{pid}/task/{tid}/schedstat").split(" ")[0]
            if state == ["R"]:  # of which nothing is known, it has not run
                found[tid] = int(ran) if ran.isdigit() else 0
        return found

    def wait_for_driver(self, pid: int) -> bool:
        """Whether a call of the driver is held up in a thread of a locked process."""
        found = [self._text(f"{pid}/task/{tid}/syscall").split(" ") for tid in self._list(pid)]
        found = [words for words in found if len(words) > 8 and words[0] == _FUTEX.get(platform.machine())]
        code = self._library(pid) if found else []
        return any(begin <= each < end for words in found for each in self._near(pid, words) for begin, end in code)

    def _library(self, pid: int) -> list[tuple[int, int]]:
        """Where the code of libcuda is."""
        found = []
        for line in lines_of(self._text(f"{pid}/maps")):
            words = line.split(maxsplit=5)
            if len(words) == 6 and "x" in words[1] and _LIBRARY in words[5].rpartition("/")[2]:
                begin, _, end = words[0].partition("-")
                found.append((int(begin, 16), int(end, 16)))
        return found

    def _near(self, pid: int, words: list[str]) -> tuple[int, ...]:
        """Where a thread is, and what lies on its stack there; `words` of its system call."""
        stack, here = int(words[7], 16), int(words[8], 16)
        if stack >> 63:
            return (here,)  # the kernel's half
        try:
            with closing(self._open(f"{pid}/mem")) as fd:
                data = os.pread(fd, _NEAR, stack)
        except PermissionError:
            raise  # who cannot be watched is not taken for idle
        except OSError:  # it has ended, or has no stack there
            data = b""
        return (here, *struct.unpack_from(f"<{len(data) // 8}Q", data))

    def _open(self, path: str, flags: int = 0) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=self._proc)

    def _list(self, pid: int) -> list[int]:
        try:
            with closing(self._open(f"{pid}/task", os.O_DIRECTORY)) as fd:
                return [int(name) for name in os.listdir(fd) if name.isdigit()]
        except OSError as error:
            if error.errno in ENDED:
                return []
            raise

    def _text(self, path: str) -> str:
        """What a file of /proc says, "" where its process has ended. Raises OSError."""
        try:
            with open(self._open(path), encoding="utf-8", errors="replace", newline="\n") as file:
                return file.read(_MAPS_MAX).strip()
        except OSError as error:
            if error.errno in ENDED:
                return ""
            raise
