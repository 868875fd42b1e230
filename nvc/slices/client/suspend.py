"""Has nvcd suspend slices and bring them back."""

from __future__ import annotations

import time
from collections.abc import Callable

from nvc.model.slices.entry import RegistryError
from nvc.model.slices.suspension import RESUMING, SUSPENDED, SUSPENDING
from nvc.model.slices.time_settings import TO_START
from nvc.slices.client import nvcd

PAUSE = 0.05  # seconds between two looks at how it goes
RUNNING = "running"


#: Told again and again meanwhile: the seconds that have passed, and the state of the slice.
Tell = Callable[[float, str], None]


def suspend(key: str, name: str, timeout: float, tell: Tell) -> None:
    """Have the memory of a slice taken off its GPUs. Raises RegistryError."""
    _wait("suspend slice", "suspend", SUSPENDED, key, name, timeout, tell)


def resume(key: str, name: str, timeout: float, tell: Tell) -> None:
    """Have it brought back. Raises RegistryError."""
    _wait("resume slice", "unsuspend", RUNNING, key, name, timeout, tell)


def _wait(step: str, question: str, wanted: str, key: str, name: str, timeout: float, tell: Tell) -> None:
    begin = time.monotonic()
    answer = nvcd.answer(RegistryError(step, name, hint=TO_START), question, key=key)
    silent = RegistryError(step, name, hint=f"{TO_START}; it brings the slice back")
    while answer.get("state") in (SUSPENDING, RESUMING):
        passed = time.monotonic() - begin
        tell(passed, str(answer["state"]))
        if passed > timeout:
            cause = f"it is {answer['state']} still after {timeout:.0f} s, and nvcd goes on"
            raise RegistryError(step, name, cause, f"`nvc-cli vgpu show {name}` tells what comes of it")
        time.sleep(PAUSE)
        answer = nvcd.answer(silent, "suspension", key=key)
    state, cause = str(answer.get("state")), str(answer.get("problem") or answer.get("error") or "")
    if state != wanted or cause:
        now = "it is not suspended" if state == RUNNING else f"it is {state}"
        text = f"{cause}; {now}" if cause else now
        hint = str(answer.get("hint") or "`nvc-cli vgpu show SLICE` tells more").replace("SLICE", name)
        raise RegistryError(step, name, text[:500], hint[:200])


