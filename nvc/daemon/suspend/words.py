"""What people hear of suspensions: how many there were, and what a call that failed means."""

from __future__ import annotations

from dataclasses import dataclass

from nvc.daemon.suspend.calls import ILLEGAL_STATE, NO_CALLS, NOT_READY, OUT_OF_MEMORY, Outcome
from nvc.daemon.suspend.room import Refusal
from nvc.daemon.suspend.swap import IN, OUT

_UNSUPPORTED, _SYSTEM, _CAPTURES = 801, 304, 900
_NO_HOST = ("the host gave no memory for it", "see the memory limit of its container")
_NEWER = "driver 570 (CUDA 12.8) or newer has these calls"
#: By the number of CUDA: the cause and the remedy.
_MEANING = {
    NO_CALLS: ("the driver has no such call", _NEWER),
    OUT_OF_MEMORY: ("the GPU had no room; driver 580 does not bring it back any more", "end the process"),
    ILLEGAL_STATE: ("another program has it, to make or restore a checkpoint", "try again once that has ended"),
    NOT_READY: ("work in flight did not end in time", "try again when its kernels are shorter, or wait for them"),
    _UNSUPPORTED: (
        "the driver cannot save what it has: managed memory, memory of several processes, or a group of GPUs",
        f"leave it running; {_NEWER}",
    ),
    _SYSTEM: ("the driver cannot reach it, or does not bring it back after it once found no room", "end it"),
}


#: The same, by the step as well.
_AT = {
    ("cuCheckpointProcessCheckpoint", OUT_OF_MEMORY): _NO_HOST,
    (OUT, OUT_OF_MEMORY): _NO_HOST,
    (IN, OUT_OF_MEMORY): ("the GPU had no room: it stays in the host's memory", "suspend others"),
    (OUT, _CAPTURES): ("a graph is being captured", "try again"),
}


def failure(found: Outcome) -> Refusal:
    """Why the slice is where it is."""
    known = _AT.get((found.step, found.code)) or _MEANING.get(found.code)
    cause, hint = known or (f"CUDA error {found.code}" if found.code else "it did not work", "")
    return Refusal(f"process {found.pid}" if found.pid else "", f"{found.step}: {cause}", hint)


@dataclass(eq=False)
class Counts:
    """How often since nvcd started, and for how long programs waited that needed the GPU of a suspended slice."""

    suspends: int = 0
    resumes: int = 0
    suspend_failures: int = 0
    hook_failures: int = 0
    wakes: int = 0  # resumes because of use
    waited: int = 0  # nanoseconds
    longest: int = 0
    last: int = 0  # nanoseconds that the last way out or back took

    def woke(self, waited: int) -> None:
        """Its programs have what they waited for."""
        self.wakes += 1
        self.waited += waited
        self.longest = max(self.longest, waited)

    def document(self) -> dict[str, int]:
        """For programs."""
        names = "suspends", "resumes", "failures", "hookFailures", "wakes", "waitedNs", "longestNs", "lastNs"
        return dict(zip(names, vars(self).values()))
