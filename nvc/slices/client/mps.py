"""Isolation by MPS: nvcd starts a server for one slice, whose limits the driver enforces."""

from __future__ import annotations

import time

from nvc.errors import DeviceError, InitializationError
from nvc.rundir import runtime_directory
from nvc.slices.client import nvcd
from nvc.slices.model.layout import NO_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.slices.model.slice import SliceDevice

STEP = "isolation by MPS"
PAUSE = 0.05  # seconds between two looks at whether the server is ready
ANSWER_TIME = 10.0  # seconds for one answer


def directory(key: str, uuid: str) -> str:
    """The directory with the pipes of the server that nvcd starts for a slice."""
    return f"{runtime_directory()}/mps/{key}/{uuid}/pipe"


def only_device(devices: tuple[SliceDevice, ...]) -> SliceDevice:
    """The one device that the slice may use. Raises DeviceError for another number of devices."""
    usable = [device for device in devices if not device.hidden]
    if len(usable) != 1:
        raise DeviceError(STEP, cause=f"{len(usable)} devices", hint="an MPS server has one: ask for one")
    return usable[0]


def start(key: str, device: SliceDevice, percent: int, timeout: float) -> None:
    """Have nvcd start a server for a slice, and wait up to `timeout` seconds for its limits. Raises DeviceError."""
    memory = 0 if device.limit == NO_LIMIT else device.limit
    end = time.monotonic() + timeout
    while True:
        answer = _ask("mps-start", device.uuid, key=key, uuid=device.uuid, percent=percent, memory=memory)
        problem = answer.get("error") or answer.get("problem")
        if problem:
            raise DeviceError(STEP, device.uuid, str(problem)[:400], str(answer.get("hint") or "")[:200])
        if answer.get("state") == "ready":
            return
        if time.monotonic() > end:
            raise DeviceError(STEP, device.uuid, "the server is not ready in time", "see --timeout")
        time.sleep(PAUSE)


def stop(key: str) -> None:
    """End the server of a slice that could not be started. Does nothing if nvcd does not answer."""
    try:
        _ask("mps-stop", key, key=key)
    except DeviceError:
        pass


def _ask(question: str, what: str, **words: str | int) -> dict[str, Any]:
    try:
        return nvcd.ask(question, ANSWER_TIME, **words)
    except InitializationError as error:
        cause = f"nvcd does not answer at {error.path}: {error.cause}"
        raise DeviceError(STEP, what, cause, "start nvcd") from None
