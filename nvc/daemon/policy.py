"""How the time of a device is shared: cGPU's policies, by its numbers, and what follows from each. Pure."""

from __future__ import annotations

from nvc.value import Value
from nvc.vgpu.layout import POLICIES, POLICY_NATIVE

FAIR, PREEMPT, WEIGHT, FIXED, SOFT, NATIVE = range(6)
MS = 1_000_000  # nanoseconds
SLICE = 10 * MS
SLICE_MIN, SLICE_MAX = 1 * MS, 1000 * MS
#: Under `soft` slices are longer, and who has the device alone keeps it so long after another has come.
SOFT_FACTOR = 4
SOFT_RECLAIM = 100 * MS
#: Under `weight`, an arrival with so many times the holder's weight does not wait for the end of the slice.
PRIORITY = 8
MAX_INSTANCES = 64
FILE_LIMIT = 4096  # bytes


class DevicePolicy(Value):
    """What holds for one device."""

    number: int = POLICY_NATIVE
    slice: int = SLICE  # nanoseconds
    max_instances: int = 0  # 0: as many as there are
    total_weight: int = 0  # 0: not bounded

    @property
    def name(self) -> str:
        """As an operator writes it."""
        return POLICIES[self.number]


class Terms(Value):
    """What a tenant was promised of one device."""

    weight: int = 1
    cores: int = 0  # percent; 0: not capped
    paused: bool = False


def parse_policy(text: str, inherited: DevicePolicy) -> tuple[DevicePolicy, tuple[str, ...]]:
    """The policy in a file `/run/nvc/vgpu-policy/<UUID>` and what is wrong with it.

    A line that makes no sense is left out, and said: the rest of the file holds.
    """
    found, problems = inherited, []
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        value = value.strip()
        if not name or name.startswith("#"):
            continue
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else -1
        if name == "policy" and (value in POLICIES or 0 <= number < len(POLICIES)):
            found = found.replace(number=POLICIES.index(value) if value in POLICIES else number)
        elif name == "max-instances" and 0 <= number <= MAX_INSTANCES:
            found = found.replace(max_instances=number)
        elif name == "total-weight" and number >= 0:
            found = found.replace(total_weight=number)
        elif name == "slice-us" and SLICE_MIN <= number * 1000 <= SLICE_MAX:
            found = found.replace(slice=number * 1000)
        else:
            problems.append(f"not understood: {line.strip()[:80]!r}")
    return found, tuple(problems)
