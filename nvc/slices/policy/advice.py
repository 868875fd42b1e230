"""Which policy fits the slices of one device, from what they do now. Pure.

Three questions decide (docs/choose-policy.md): whether the tenants trust each other, which only the operator knows;
whether some wait for each step, which the driver's log tells; and what was promised to them, which caps and weights
say.
"""

from __future__ import annotations

from nvc.base.value import Value
from nvc.model.slices.policy import MPS_CLIENTS, POLICIES, policy_of

SHORT = 0.010  # seconds: who waits for a step of this length notices what others' timeslices add to it
IDLE = 0.01  # of the time
UNKNOWN, IDLING, WAITING, WORKING = "not measured", "idle", "short steps", "long steps"


class Load(Value):
    """What one slice did on the device between two readings."""

    name: str
    share: float | None = None  # of the device's time; None: its policy does not measure it
    waited: float | None = None  # stopped or held back, as a part of the time
    step: float | None = None  # seconds after which it has nothing to run; None: not before its timeslice ends
    cores: int = 0  # cap in percent; 0: none
    weight: int = 1
    used: int | None = None  # bytes
    processes: int = 0  # that use the GPU
    server: bool = False  # it was started under `concurrent`
    first: bool = False  # it asked for `first`

    @property
    def kind(self) -> str:
        """What it does, in two words."""
        if self.share is None:
            return UNKNOWN if self.processes else IDLING
        if self.share < IDLE and (self.waited or 0.0) < IDLE:
            return IDLING
        return WAITING if self.step is not None and self.step < SHORT else WORKING


class Situation(Value):
    """One device and its slices."""

    uuid: str
    index: str
    model: str
    policy: int  # in force
    loads: tuple[Load, ...]
    busy: int | None = None  # percent of the last moments in which a kernel ran, as NVML says
    memory: int | None = None  # bytes in use, as NVML says
    not_enforced: str = ""  # why its policy is not, where that is so

    @property
    def active(self) -> tuple[Load, ...]:
        """The slices that did something, or may have."""
        return tuple(one for one in self.loads if one.kind != IDLING)


class Advice(Value):
    """What to do with a device, and why."""

    situation: Situation
    policy: str
    why: str
    commands: tuple[str, ...]  # none: leave it as it is


def advise(situation: Situation, trusted: bool) -> Advice:
    """The policy for a device. `trusted`: a fault of one tenant may end the programs of all."""
    name, why, more = _choice(situation, trusted)
    now = policy_of(situation.policy).name
    if name == "concurrent" and not all(one.server for one in situation.loads):
        why += "; a slice can join only from its start: stop them, set the policy, start them"
    if situation.not_enforced and policy_of(POLICIES.index(name)).needs_nvcd:
        why += f"; it is not enforced now: {situation.not_enforced}"
    commands = () if name == now else (f"nvc-cli vgpu policy {situation.index} {name}",)
    return Advice(situation, name, why, (*commands, *more))


def _choice(situation: Situation, trusted: bool) -> tuple[str, str, tuple[str, ...]]:
    """A policy, the reason, and commands beside that which sets the policy."""
    active, now = situation.active, policy_of(situation.policy).name
    kinds, weights = {one.kind for one in active}, {one.weight for one in active}
    if not active:
        return now, "no slice does anything: ask again while they work", ()
    if all(one.cores for one in active):
        return "fixed", "every slice that works has a cap, and only under fixed is that all that it gets", ()
    if len(active) == 1:
        why = f"only {active[0].name} works, and has the GPU's time as long as it is alone"
        return now, why, ()
    may_share = not situation.uuid.startswith("MIG-") and len(situation.loads) <= MPS_CLIENTS  # an MPS server
    if trusted and kinds == {WAITING} and may_share:
        why = (
            "short steps that are waited for leave much of the GPU unused. Four such programs made 1.46 times as"
            " many of them side by side, on an H200 (docs/choose-policy.md)"
        )
        lighter = "; of different weights less: the lighter ones pause" if len(weights) > 1 else ""
        return "concurrent", why + lighter, ()
    short, long = ([one for one in active if one.kind == kind] for kind in (WAITING, WORKING))
    if short and long and len({one.weight for one in long}) == 1:
        sets = tuple(f"nvc-cli vgpu set {one.name} --policy first" for one in short if not one.first)
        who = f"{short[0].name} waits" if len(short) == 1 else f"{len(short)} slices wait"
        why = (
            f"{who} for steps of less than {SHORT * 1000:.0f} ms beside longer work. A program that is first made"
            " 95 to 98 % of its steps alone, on an H100 (docs/measurements/README.md)"
        )
        return "first", why, sets
    if len(weights) > 1:
        return "weight", "weights differ: only by weight does each get its part", ()
    if UNKNOWN in kinds:
        why = f"what they do is not measured under {now}: by weight, each gets its part, and it is"
        return "weight", why, ()
    if now == "weight":
        return now, "all slices have one weight, and each gets its part of the time that is used", ()
    return "weight", "each gets its part, and what one leaves goes to the others", ()
