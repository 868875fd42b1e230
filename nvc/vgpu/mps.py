"""A slice fenced by MPS: nvcd starts a server of its own for it, with limits that the driver keeps."""

from __future__ import annotations

import os
import socket
import time

from nvc.errors import DeviceError
from nvc.fastjson import JsonError, parse
from nvc.rundir import runtime_directory
from nvc.vgpu.layout import NO_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.vgpu.slices import SliceDevice

STEP = "fence by MPS"
PAUSE = 0.05  # seconds between two looks at whether the server is ready
REPLY_MAX = 1 << 16


def directory(key: str, uuid: str) -> str:
    """Where the pipes of the server are that nvcd starts for a slice."""
    return f"{runtime_directory()}/mps/{key}/{uuid}/pipe"


def only_device(devices: tuple[SliceDevice, ...]) -> SliceDevice:
    """The one device that can be fenced. Raises DeviceError."""
    usable = [device for device in devices if not device.hidden]
    if len(usable) != 1:
        raise DeviceError(STEP, cause=f"{len(usable)} devices", hint="an MPS server has one: ask for one")
    return usable[0]


def start(key: str, device: SliceDevice, percent: int, timeout: float) -> None:
    """Have a server started for a slice, and wait until it has its limits. Raises DeviceError."""
    memory = 0 if device.limit == NO_LIMIT else device.limit
    what = f'"key": "{key}", "uuid": "{device.uuid}", "percent": {percent}, "memory": {memory}'
    end = time.monotonic() + timeout
    while True:
        answer = _ask(f'"ask": "mps-start", {what}', device.uuid)
        problem = answer.get("error") or answer.get("problem")
        if problem:
            raise DeviceError(STEP, device.uuid, str(problem)[:400])
        if answer.get("state") == "ready":
            return
        if time.monotonic() > end:
            raise DeviceError(STEP, device.uuid, "the server is not ready in time", "see --timeout")
        time.sleep(PAUSE)


def stop(key: str) -> None:
    """End the server of a slice that did not come to be; without nvcd there is none."""
    try:
        _ask(f'"ask": "mps-stop", "key": "{key}"', key)
    except DeviceError:
        pass


def _ask(question: str, what: str) -> dict[str, Any]:
    path = f"{runtime_directory()}/nvcd/nvcd.sock"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(path)
            connection.sendall(f"{{{question}}}\n".encode())
            data = b""
            while len(data) <= REPLY_MAX and (part := connection.recv(REPLY_MAX)):
                data += part
        found = parse(data, REPLY_MAX)
    except OSError as error:
        cause = os.strerror(error.errno).lower() if error.errno else str(error)
        raise DeviceError(STEP, what, f"nvcd does not answer at {path}: {cause}", "start nvcd") from None
    except JsonError as error:
        raise DeviceError(STEP, what, f"nvcd's answer: {error}") from None
    return found if isinstance(found, dict) else {}
