"""How the time of a device is shared: cGPU's policies, by its numbers, and what follows from each. Pure."""

from __future__ import annotations

from nvc.slices.model.layout import POLICIES, POLICY_NATIVE
from nvc.slices.policy.policies import NONE
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.slices.policy.policies import DevicePolicy as LaidDown

FAIR, PREEMPT, WEIGHT, FIXED, SOFT, NATIVE = range(6)
MS = 1_000_000  # nanoseconds
SLICE = 10 * MS
#: Under `soft` slices are longer, and who has the device alone keeps it so long after another has come.
SOFT_FACTOR = 4
SOFT_RECLAIM = 100 * MS
#: Under `weight`, an arrival with so many times the holder's weight does not wait for the end of the slice.
PRIORITY = 8


class DevicePolicy(Value):
    """What holds for one device."""

    number: int = POLICY_NATIVE
    slice: int = SLICE  # nanoseconds
    max_instances: int = 0  # 0: as many as there are

    @property
    def name(self) -> str:
        """As an operator writes it."""
        return POLICIES[self.number]


class Terms(Value):
    """What a tenant was promised of one device."""

    weight: int = 1
    cores: int = 0  # percent; 0: not capped
    paused: bool = False


def policy_of(laid_down: LaidDown, asked: tuple[int, ...]) -> DevicePolicy:
    """What holds for a device: what the operator laid down, else what the first slice asked for that does not
    want `native`; `asked` are the policies of its slices, the oldest first."""
    number = laid_down.policy
    if number == NONE:
        number = next((own for own in asked if own != NATIVE), NATIVE)
    length = laid_down.slice_us * 1000 or SLICE
    return DevicePolicy(number if number < len(POLICIES) else NATIVE, length, laid_down.max_instances)
