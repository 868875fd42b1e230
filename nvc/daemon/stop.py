"""Ends the nvcd that runs, and waits for that."""

from __future__ import annotations

import os
import select
import signal

from nvc.base.errors import InitializationError
from nvc.base.files import lines_of
from nvc.daemon.io.sockets import listener_of
from nvc.slices.client.nvcd import failed
from nvc.slices.client.presence import NOT_RUNNING, socket_path

PATIENCE = 30.0  # seconds
UNIT = "nvcd.service"
STOP = "stop nvcd"
BY_SYSTEMD = "`systemctl stop nvcd.socket nvcd`"


def stop() -> int:
    """End nvcd as SIGTERM does; its process id is returned once it has ended. Raises InitializationError."""
    path = socket_path()
    pid = listener_of(path)
    if pid is None:
        raise failed(STOP, path, NOT_RUNNING, "if nobody stopped it: `journalctl -u nvcd`")
    if _is_systemd(pid):
        raise _of_unit(path)
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    except OSError:  # 0: of a pid namespace that is not seen from here
        raise failed(STOP, path, "its process is not seen from here", "stop it where it was started") from None
    try:
        if _is_of_unit(pid):
            raise _of_unit(path)
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        if not select.select((fd,), (), (), PATIENCE)[0]:
            cause = f"process {pid} has not ended within {PATIENCE:g} s"
            raise failed(STOP, path, cause, f"`kill -KILL {pid}`: slices and containers go on")
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)
    return pid


def _is_systemd(pid: int) -> bool:
    """Whether it is systemd that listens, for nvcd.socket."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return pid == 1 and file.read() == "systemd\n"
    except OSError:
        return False


def _of_unit(path: str) -> InitializationError:
    cause = f"systemd runs it as {UNIT}, and would start it again"
    return failed(STOP, path, cause, BY_SYSTEMD)


def _is_of_unit(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return any(line.endswith(f"/{UNIT}".encode()) for line in lines_of(file.read()))
    except OSError:
        return False  # it has ended, or is in no cgroup that is seen
