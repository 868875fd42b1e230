"""The policy in force on a device, and the entitlement of each slice. Pure.

Slices may ask for different policies, but a device has one at a time: `in_force` decides which. nvcd schedules by
it; `vgpu top`, `vgpu show`, the metrics and `nvcd --state` print it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvc.base.value import Value
from nvc.model.request import Timing
from nvc.model.slices.layout import POLICY_NATIVE
from nvc.model.slices.policy import CAP, EQUAL, FIRST, TABLE, Policy, policy_of
from nvc.slices.policy.policies import NONE, DevicePolicy

#: Under `first`, microseconds: the timeslices of all who are first together, and that of each one who is not.
FRONT_US, FLOOR_US = 20_000, 100


class Demand(Timing):
    """What the quota of a living slice says of its time on one device."""

    key: str
    paused: bool = False  # or denied: it gets no time now
    age: tuple[int, int] = (0, 0)  # when the slice was made, when its first process began: the least is the oldest
    first: bool = False  # under `first`, it goes before those that do not ask for that


class Terms(Value):
    """How one slice is scheduled under the policy in force."""

    demand: Demand
    timed: bool = True  # the slice asked for a policy by which nvcd divides the time
    weight: int = 1  # its part of the time is in proportion to this
    bound: float = 0.0  # the part of the time that nvcd holds it to; 0: none

    @property
    def key(self) -> str:
        return self.demand.key

    @property
    def cap(self) -> float:
        """The part of the time that it asked to be held to; 1.0: no cap."""
        return self.demand.cores / 100 or 1.0


class InForce(Value):
    """The policy in force on one device, with the terms of its slices."""

    policy: Policy = TABLE[POLICY_NATIVE]
    quantum: int = 0  # nanoseconds: the operator's timeslice between equal slices; 0: none
    terms: tuple[Terms, ...] = ()  # of all demands, the oldest first
    floor_us: int = 0  # the operator's, of the timeslices of who is not first; 0: none

    @property
    def together(self) -> tuple[Terms, ...]:
        """Slices whose kernels run at the same time, under one MPS server."""
        return tuple(one for one in self.terms if self.policy.server and policy_of(one.demand.policy).server)

    @property
    def weighed(self) -> tuple[Terms, ...]:
        """Slices that run at the same time and are not paused, if their weights differ; else ()."""
        found = tuple(one for one in self.together if self.policy.weighs and not one.demand.paused)
        return found if len({one.weight for one in found}) > 1 else ()

    @property
    def front(self) -> frozenset[str]:
        """The keys of slices that go before the others, if there are others."""
        found = frozenset(one.key for one in self.terms if one.timed and one.demand.first)
        ahead = self.policy.number == FIRST and len(found) < sum(one.timed for one in self.terms)
        return found if ahead else frozenset()

    @property
    def floor(self) -> int:
        """The timeslice of who is not first, in microseconds."""
        return self.floor_us or FLOOR_US


def in_force(device_policy: DevicePolicy, demands: tuple[Demand, ...]) -> InForce:
    """The policy in force on a device with these slices.

    The policy is the operator's for the device, else that of the oldest slice whose own is timed.
    """
    demands = tuple(sorted(demands, key=lambda demand: (demand.age, demand.key)))
    timed = [demand for demand in demands if policy_of(demand.policy).timed]
    number = device_policy.policy
    if number == NONE:
        servers = [demand for demand in demands if policy_of(demand.policy).server]
        number = timed[0].policy if timed else servers[0].policy if servers else POLICY_NATIVE
    policy = policy_of(number)
    part = 1 / max(len(timed), device_policy.max_instances, 1)
    terms = tuple(
        Terms(
            demand,
            policy_of(demand.policy).timed,
            max(demand.weight, 1) if policy.weighs else 1,
            {EQUAL: part, CAP: demand.cores / 100}.get(policy.bound, 0.0),
        )
        for demand in demands
    )
    return InForce(policy, device_policy.quantum_us * 1000, terms, device_policy.floor_us)


def with_guest(force: InForce, key: str) -> InForce:
    """A policy in force with one more tenant, the youngest. It has weight 1 and no cap, and is not first."""
    bound = 0.0
    if force.policy.bound == EQUAL and force.terms:
        before = round(1 / force.terms[0].bound)  # parts: those of the slices, or more that the operator keeps free
        bound = 1 / max(sum(one.timed for one in force.terms) + 1, before)
    guest = Terms(Demand(key, policy=force.policy.number), bound=bound)
    slices = tuple(one.replace(bound=bound) if bound else one for one in force.terms)
    return force.replace(terms=(*slices, guest))


def holds(force: InForce) -> dict[str, tuple[int, float | None]]:
    """For each slice on the device, by key: the number of its policy, and its entitlement if it has one."""
    entitled = entitlements(force)
    return {
        terms.key: (force.policy.number if terms.timed else terms.demand.policy, entitled.get(terms.key))
        for terms in force.terms
    }


def entitlements(force: InForce, idle: frozenset[str] = frozenset()) -> dict[str, float]:
    """The part of the device's time, by key, that each slice gets. All but `idle` and paused ones have work.

    Where slices run at the same time, it is the part of what all of them do. Slices that are not timed, and of one
    weight are left out: the driver decides what they get.
    """
    if force.weighed:
        running = [terms for terms in force.weighed if terms.key not in idle]
        parts = filled(1.0, [terms.cap for terms in running], [terms.weight for terms in running])
        found = {terms.key: 0.0 for terms in force.together}
        return {**found, **{terms.key: part for terms, part in zip(running, parts)}}
    sharing = [terms for terms in force.terms if terms.timed and force.policy.timed]
    active = [terms for terms in sharing if not terms.demand.paused and terms.key not in idle]
    bounded = [terms for terms in active if terms.bound]
    others = [terms for terms in active if not terms.bound]
    promised = sum(terms.bound for terms in bounded)
    found = {terms.key: 0.0 for terms in sharing}
    found.update({terms.key: min(terms.cap, terms.bound / max(promised, 1.0)) for terms in bounded})
    weights: list[float] = [terms.weight for terms in others]
    if ahead := force.front & {terms.key for terms in others}:
        weights = [FRONT_US / len(ahead) if terms.key in ahead else force.floor for terms in others]
    parts = filled(max(1.0 - promised, 0.0), [terms.cap for terms in others], weights)
    return {**found, **{terms.key: part for terms, part in zip(others, parts)}}


def filled(whole: float, caps: list[float], weights: Sequence[float]) -> list[float]:
    """Divide `whole` by weight, each part up to its cap. What a cap cuts off goes to the others."""
    parts = [*caps]
    left, rest = whole, list(range(len(caps)))
    while rest:
        total = sum(weights[number] for number in rest)
        wanting = [number for number in rest if parts[number] > left * weights[number] / total]
        if len(wanting) == len(rest):
            for number in rest:
                parts[number] = left * weights[number] / total
            break
        left -= sum(parts[number] for number in rest if number not in wanting)
        rest = wanting
    return parts
