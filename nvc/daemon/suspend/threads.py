"""What the threads of a process are at, as /proc shows it, while the driver has the process locked.

Driver 580 holds up most calls of a locked process, but not those that ask what the device has done, and these fault
once the memory is away (native/vgpu/charge/resident.h). The shim lets none begin from SEEN seconds after nvcd has
said so in the quota. One that began before has ended once its thread has run on, or sleeps: what it waits for has
ended with the lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from nvc.slices.store.process_info import ENDED

SEEN = 0.06  # seconds: three times what the shim goes without a look at the quota
PATIENCE = 5.0
_STEP = 0.005
_WOKEN = 0.01  # who sleeps until work has ended runs by then, or is to
_ENOUGH = 2_000_000  # nanoseconds in which a query ends


class Threads:
    """Those of any process. Raises OSError where /proc cannot be opened."""

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
            if state == ["R"] and ran.isdigit():
                found[tid] = int(ran)
        return found

    def _list(self, pid: int) -> list[int]:
        try:
            fd = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return []
        try:
            return [int(name) for name in os.listdir(fd) if name.isdigit()]
        except OSError:
            return []
        finally:
            os.close(fd)

    def _text(self, path: str) -> str:
        """What a file of /proc says, "" where its process has ended. Raises OSError."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            with open(fd, encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError as error:
            if error.errno in ENDED:
                return ""
            raise
