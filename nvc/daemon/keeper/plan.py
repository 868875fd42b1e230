"""What the timekeeper is to do on each device: timeslices, stops, quotas. Pure.

The driver switches channel groups round robin, each for its timeslice, so timeslices in proportion to the
entitlements divide the time of those that have work, without a call. A cap is a quota in each period: the
timekeeper stops a slice that had it (nvc/daemon/keeper/caps.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from nvc.base.value import Value
from nvc.model.slices.policy import MS
from nvc.slices.policy.entitlement import FLOOR_US, FRONT_US, InForce, Terms, entitlements, with_guest

NATIVE_US = 2048  # the driver's own timeslice of a group that computes
#: Of one of several equal tenants: best for decode loops (docs/measurements/reports/2026-11-24-time-h100.md).
TURN = 4 * MS
LEAST_US = 1000  # of a group, unless the longest would be too long then
LONGEST_US = 20_000
CHANGE = 150_000  # nanoseconds from one group's work to another's, in which the device works for nobody
PERIOD = 100 * MS  # of a cap, where the slice asks for none
PERIODS = (20 * MS, 1000 * MS)
TURNS = 200 * MS  # in place of PERIOD, where jobs take turns on several devices: in 100 ms two did 0.6 of one alone
SLACK = 8  # of a quota, this part may be had above it where caps promise all of the time
ALONE = 0.8  # of what the busiest group of a slice had: one that had this much counts as always working
LATELY = 500 * MS  # what a process had in them says whether it works
SATURATED = 0.8  # of what it is entitled to: who had this much lately wants all of it
IDLE = 0.01  # of the time: who had less lately leaves its part to others
ROUND = 50 * MS  # a capped slice has a part of this at a time: 20 changes to it and back in a second

STRANGERS = "strangers"  # the key in a plan for all processes in no slice
SLICE, STOP = "slice", "stop"  # on-stranger: together they are one more tenant; they do not run beside slices


class Group(Value):
    """A channel group whose channels compute."""

    client: int
    handle: int
    pid: int  # on the host, of who made it
    fd: int  # the driver's control file in that process; -1: it has no timeslice of its own
    channels: tuple[int, ...]
    serial: int = 0  # another one when the group or a channel of it was made anew under a known handle
    touched: int = 0  # how often a process has set its timeslice itself
    opener: int = 0  # who made the client, whom the log may name instead; 0: the tracer has not seen that


class SlicePlan(Value):
    """What holds for one slice on a device."""

    key: str
    groups: tuple[Group, ...]
    timeslice_us: int = 0  # of each group; 0: as it is
    stopped: bool = False
    quota_ns: int = 0  # in each period; 0: no cap
    period_ns: int = PERIOD
    burst_ns: int = 0  # of unused quota, what is kept for later
    slack_ns: int = 0  # what it may have above its quota, and pay back later, before it is stopped
    in_turn: bool = False  # it has its quota at the beginning of its period, and does not run in the rest


class DevicePlan(Value):
    """What holds on a device."""

    uuid: str
    slices: tuple[SlicePlan, ...] = ()


class Plan(Value):
    """What holds on all devices."""

    devices: tuple[DevicePlan, ...] = ()


def plan_with_strangers(
    uuid: str,
    force: InForce,
    groups: Mapping[str, tuple[Group, ...]],
    activity: Mapping[int, int],
    strangers: tuple[Group, ...],
    how: str,
    spanning: frozenset[str] = frozenset(),
    resting: frozenset[int] = frozenset(),
) -> DevicePlan:
    """The plan of a device on which processes in no slice have groups, too. `how` is on-stranger."""
    if strangers and how == SLICE:
        force, groups = with_guest(force, STRANGERS), {**groups, STRANGERS: strangers}
        return plan(uuid, force, groups, activity, spanning, resting)
    made = plan(uuid, force, groups, activity, spanning, resting)
    if strangers and how == STOP:
        made = made.replace(slices=(*made.slices, SlicePlan(STRANGERS, strangers, stopped=True)))
    return made


def plan(
    uuid: str,
    force: InForce,
    groups: Mapping[str, tuple[Group, ...]],
    activity: Mapping[int, int],
    spanning: frozenset[str] = frozenset(),
    resting: frozenset[int] = frozenset(),
) -> DevicePlan:
    """The plan of a device under the policy in force. `spanning`: the slices that use another device, too.

    `groups` by the key of the slice; one without groups stays in the plan, since its cap goes on while its
    processes come and go. `activity`: nanoseconds that each process had lately, by its number, of one span of time
    LATELY; `resting`: processes that have stopped working since.
    """
    present = tuple(terms for terms in force.terms if groups.get(terms.key))
    if force.policy.server or not force.policy.timed:
        slices = tuple(
            SlicePlan(
                terms.key,
                groups.get(terms.key, ()),
                0 if terms in force.together else NATIVE_US,
                terms.demand.paused,
            )
            for terms in force.terms
        )
        return DevicePlan(uuid, slices)
    caps = {terms.key: cap_of(terms) for terms in force.terms}
    turns = _turns(force, present, groups, activity, spanning, resting)
    caps |= turns
    slack = SLACK if _full(present, caps) else 0
    counts = {terms.key: working(groups[terms.key], activity) for terms in present}
    lengths = timeslices(force, present, caps, counts)
    periods = {terms.key: period_of(terms) for terms in force.terms}
    if turns:
        periods = {key: TURNS if period == PERIOD else period for key, period in periods.items()}
    return DevicePlan(
        uuid,
        tuple(
            SlicePlan(
                terms.key,
                groups.get(terms.key, ()),
                lengths.get(terms.key, 0),
                terms.demand.paused,
                quota := round(caps[terms.key] * periods[terms.key]) if caps[terms.key] < 1 else 0,
                periods[terms.key],
                quota,
                quota // slack if slack else 0,
                terms.key in turns,
            )
            for terms in force.terms
        ),
    )


def _turns(
    force: InForce,
    present: tuple[Terms, ...],
    groups: Mapping[str, tuple[Group, ...]],
    activity: Mapping[int, int],
    spanning: frozenset[str],
    resting: frozenset[int],
) -> dict[str, float]:
    """The parts of the time that slices have as quotas beside a program on several devices, by the slice's key.

    Devices do not agree on whose turn it is. Of two such programs each may run on one device and wait there for its
    other half, for ever: on two H200s two jobs of tensor parallel decoding did 1 % each. Both have half of each
    device's time then, so quotas of a half would stop neither. So each has its quota at one moment on all devices,
    while the others are stopped. Only slices that use all that they are entitled to take turns, and they share what
    the others have not used. Those with a period of another length do not.
    """
    if force.front or not spanning:
        return {}
    had = {}
    for terms in present:
        pids = {group.pid for group in groups[terms.key]}
        if not pids <= resting or period_of(terms) > PERIOD:  # a quota of a long period may have ended
            had[terms.key] = sum(activity.get(pid, 0) for pid in pids) / LATELY
    usual = {terms.key for terms in present if period_of(terms) == PERIOD}
    everybody = frozenset(terms.key for terms in force.terms)
    part = entitlements(force, everybody - {key for key, had_ in had.items() if had_ >= IDLE})
    wanting = {key for key in had if key in usual and part.get(key) and had[key] >= SATURATED * part[key]}
    if len(wanting) < 2 or wanting.isdisjoint(spanning):
        return {}
    left = max(1.0 - sum(had[key] for key in had.keys() - wanting), 0.0)
    part = entitlements(force, everybody - wanting)
    return {terms.key: min(part[terms.key] * left, cap_of(terms)) for terms in present if terms.key in wanting}


def cap_of(terms: Terms) -> float:
    """The part of the time that a slice never gets more of; 1.0: it may have all."""
    return min(terms.cap, terms.bound or 1.0) if terms.timed else 1.0


def phases(plan: Plan) -> dict[str, int]:
    """When the periods of capped slices begin, nanoseconds, by the slice's key: the same on all devices.

    A program that spans several devices waits on each for the others, so a slice is to run on all at once. Each
    slice begins where the quotas of those before it end: where caps leave room for that, two do not run at once.
    """
    capped: dict[str, SlicePlan] = {}
    places: dict[str, list[str]] = {}
    for device in plan.devices:
        for one in device.slices:
            if one.quota_ns:
                capped[one.key] = one
                places.setdefault(one.key, []).append(device.uuid)
    found: dict[str, int] = {}
    ends: dict[tuple[str, int], int] = {}  # of the quotas before, by device and period
    for key in sorted(capped, key=lambda key: (not capped[key].in_turn, -len(places[key]), key)):
        quota, period = capped[key].quota_ns, capped[key].period_ns
        begin = max(ends.get((uuid, period), 0) for uuid in places[key])
        found[key] = begin % period
        ends.update({(uuid, period): begin + quota for uuid in places[key]})
    return found


def period_of(terms: Terms) -> int:
    """The period of a slice's cap in nanoseconds."""
    least, most = PERIODS
    return min(max(terms.demand.period_us * 1000 or PERIOD, least), most)


def working(groups: tuple[Group, ...], activity: Mapping[int, int]) -> float:
    """How many of a slice's groups have work, in eighths; at least one.

    The driver gives each group one timeslice in a round. The busiest counts as 1, another one as its part of what
    the busiest had. `timeslices` divides by this, so that more processes bring a slice no more time. Where nothing
    is known, each counts as 1.
    """
    had = {group.pid: activity.get(group.pid, 0) for group in groups}
    most = max(had.values())
    if not most:
        return float(len(had))
    count = sum(1.0 if one >= ALONE * most else one / most for one in had.values())
    return max(round(count * 8) / 8, 1.0)


def timeslices(
    force: InForce, present: tuple[Terms, ...], caps: Mapping[str, float], counts: Mapping[str, float]
) -> dict[str, int]:
    """Microseconds of each group of a slice, by the slice's key."""
    absent = frozenset(terms.key for terms in force.terms) - {terms.key for terms in present}
    entitled = entitlements(force, absent)
    # A cap above what weights give a slice is no reason for more time than that.
    above = [one.key for one in present if entitled.get(one.key, 0.0) + 1e-9 < caps[one.key] == cap_of(one)]
    caps = {**caps, **dict.fromkeys(above, 1.0)}
    parts = _parts(present, caps, entitled)
    if front := force.front & {terms.key for terms in present}:
        return _behind(force, present, counts, front)
    turn = (force.quantum or TURN * force.policy.quanta) // 1000
    lengths = {key: part * turn * len(parts) / counts[key] for key, part in parts.items()}
    least = min(lengths.values(), default=0.0)
    if 0 < least < LEAST_US:
        lengths = {key: length * LEAST_US / least for key, length in lengths.items()}
    longest = max(LONGEST_US, force.quantum // 1000)
    most = max(lengths.values(), default=0.0)
    if most > longest:
        lengths = {key: length * longest / most for key, length in lengths.items()}
    lengths = _few_changes(present, caps, counts, lengths)
    if STRANGERS in lengths and not entitled.get(STRANGERS):
        lengths[STRANGERS] = FLOOR_US  # the caps of slices promise all of the time: strangers have what these leave
    return {key: max(round(length), FLOOR_US) for key, length in lengths.items()}


def _parts(
    present: tuple[Terms, ...], caps: Mapping[str, float], entitled: Mapping[str, float]
) -> dict[str, float]:
    """The parts of the timeslices: twice the entitlement for who is stopped once he had his quota.

    That costs the others nothing, and a cap above the equal part is reached. Whoever has no part (paused) is given
    an equal one for later.
    """
    equal = 1 / max(len(present), 1)
    return {
        terms.key: (entitled.get(terms.key) or equal) * (2 if caps[terms.key] < 1 else 1)
        for terms in present
    }


def _behind(
    force: InForce, present: tuple[Terms, ...], counts: Mapping[str, float], front: frozenset[str]
) -> dict[str, int]:
    """Who answers users is first: the others have the operator's floor. Several who are first share equally."""
    turn = FRONT_US / len(front)
    return {
        terms.key: max(round(turn / counts[terms.key]), LEAST_US)
        if terms.key in front
        else max(round(force.floor / counts[terms.key]), FLOOR_US)
        for terms in present
    }


def _few_changes(
    present: tuple[Terms, ...],
    caps: Mapping[str, float],
    counts: Mapping[str, float],
    lengths: dict[str, float],
) -> dict[str, float]:
    """Longer turns for capped slices, so that the changes cost the others less than a point.

    It has them before it is stopped, and waits for its next period anyhow. Turns are longest where caps leave next
    to nothing, since each change takes from them.
    """
    full = _full(present, caps)
    rounds, cost = (2 * ROUND, CHANGE) if full else (ROUND, 0)  # each slice bears its own change
    longer = {
        terms.key: (caps[terms.key] * min(period_of(terms), rounds) - cost) / 1000 / counts[terms.key]
        for terms in present
        if caps[terms.key] < 1
    }
    if full:
        return longer
    return {key: max(length, longer.get(key, 0.0)) for key, length in lengths.items()}


def _full(present: tuple[Terms, ...], caps: Mapping[str, float]) -> bool:
    """Whether all slices that are there have caps, and these leave no time for the changes between them.

    Then timeslices keep the shares, and quotas have some slack. If a slice were stopped the moment its quota ends,
    the time that changes take would be missing to another one.
    """
    capped = [caps[terms.key] for terms in present if caps[terms.key] < 1]
    return len(capped) == len(present) and sum(capped) > 1 - 2 * CHANGE * len(capped) / ROUND
