"""MPS servers, which nvcd starts: one for a slice that is isolated by it, one that slices of a device share."""

from __future__ import annotations

import contextlib
import time

from nvc.base.errors import DeviceError, InitializationError
from nvc.base.rundir import runtime_directory
from nvc.model.facts import HostFacts
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.policy import policy_of
from nvc.model.slices.slice import SliceDevice
from nvc.slices.client import nvcd

STEP = "isolation by MPS"
SHARING = "policy concurrent"
SHARED = "shared"  # in the place of a slice's key, of a server that slices share
CONTROL = "nvidia-cuda-mps-control"
STUB, STUB_MAX = b" of a simulated NVIDIA driver: it does nothing", 1 << 20  # native/simdriver/tools/stub.c; bytes
PAUSE = 0.05  # seconds between two looks at whether the server is ready


def directory(key: str, uuid: str) -> str:
    """The directory with the pipes of the server that nvcd starts for a slice."""
    return f"{runtime_directory()}/mps/{key}/{uuid}/pipe"


def check_program(facts: HostFacts, step: str) -> None:
    """Refuse an MPS server of a simulated driver, whose control program does nothing. Raises DeviceError.

    Tests put another program there, which is not refused.
    """
    names = [one.path for one in facts.binaries if one.path.endswith(f"/{CONTROL}")] if facts.simulated else []
    for path in (f"{facts.driver_root}{name}" for name in names):
        try:
            with open(path, "rb") as file:
                stub = STUB in file.read(STUB_MAX)
        except OSError as error:
            raise DeviceError.of(step, path, error) from None
        if stub:
            raise DeviceError(step, path, "simulated drivers have no MPS", "choose another policy or isolation")


def only_device(devices: tuple[SliceDevice, ...]) -> SliceDevice:
    """The one device that the slice may use. Raises DeviceError for another number of devices."""
    usable = [device for device in devices if not device.hidden]
    if len(usable) != 1:
        raise DeviceError(STEP, cause=f"{len(usable)} devices", hint="an MPS server has one: ask for one")
    return usable[0]


def shared_device(devices: tuple[SliceDevice, ...], isolation: str, claimed: bool) -> str:
    """The UUID of the device whose shared server a slice uses; `devices` have the policies in force.

    Raises DeviceError for a slice that cannot use one.
    """
    own = next(one for one in devices if not one.hidden and policy_of(one.policy).server)
    if sum(not one.hidden for one in devices) != 1:
        raise DeviceError(SHARING, own.uuid, "an MPS server has one device, and the slice has several",
                          "ask for one device, or for another policy")  # fmt: skip
    if ":" in own.index:
        cause = "the policy concurrent does not work on MIG devices"
        raise DeviceError(SHARING, own.uuid, cause, "choose another policy")
    if isolation:
        raise DeviceError(SHARING, own.uuid, f"its slices share one server: no isolation by {isolation}",
                          "leave the isolation out, or choose another policy")  # fmt: skip
    if claimed:
        cause = "not for claims: the MPS server would be in nvcd's container"
        raise DeviceError(SHARING, own.uuid, cause, "`nvc-cli vgpu policy GPU --reset` on that node")
    return own.uuid


def share(uuid: str, timeout: float) -> None:
    """Have nvcd start the server that slices of a device share, unless it runs. Raises DeviceError."""
    _wait(SHARING, uuid, timeout, "mps-share")


def start(key: str, device: SliceDevice, percent: int, timeout: float) -> None:
    """Have nvcd start a server for a slice, and wait up to `timeout` seconds for its limits. Raises DeviceError."""
    memory = 0 if device.limit == NO_LIMIT else device.limit
    _wait(STEP, device.uuid, timeout, "mps-start", key=key, percent=percent, memory=memory)


def _wait(step: str, uuid: str, timeout: float, question: str, **words: str | int) -> None:
    """Ask until the server of a device is ready. Raises DeviceError."""
    end = time.monotonic() + timeout
    while True:
        answer = nvcd.answer(DeviceError(step, uuid, hint="start nvcd"), question, uuid=uuid, **words)
        problem = answer.get("error") or answer.get("problem")
        if problem:
            raise DeviceError(step, uuid, str(problem)[:400], str(answer.get("hint") or "")[:200])
        if answer.get("state") == "ready":
            return
        if time.monotonic() > end:
            raise DeviceError(step, uuid, "the server is not ready in time", "see --timeout")
        time.sleep(PAUSE)


def stop(key: str) -> None:
    """End the server of a slice that could not be started. Does nothing if nvcd does not answer."""
    with contextlib.suppress(InitializationError):
        nvcd.ask("mps-stop", nvcd.ANSWER_TIME, key=key)


