"""The quantum of a device, learnt from what its slices do. Pure.

`Accounts.lease_length` in accounts.py makes the length of each lease of it.

A *step* is what a program does between two moments at which it waits for the device and has nothing left there: one
token of a model, one iteration of a training. The shim counts steps in the slice's ledger, beside the GPU time that
it charges.

A lease that is shorter than a step ends with the step, since work that has begun is finished. So slices whose steps
take a few milliseconds alternate step by step: nobody waits for several steps of another one. Where steps are
shorter than TURN, several of them make a lease, or changes would cost too much. Slices that never wait, or seldom,
have long leases.

The quantum is the same for all slices of a device, and each pays for the time that it holds the device: see
accounts.py. So a slice that writes wrong figures to its ledger changes how often leases change, and nobody's
entitlement.
"""

from __future__ import annotations

from nvc.slices.model.policy import CAP, EQUAL, MS
from nvc.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvc.slices.policy.entitlement import InForce

SECOND = 1000 * MS
SHORTEST, LONGEST = MS // 2, 40 * MS
#: Steps make a lease of at least so long, since a change costs 0.1 to 0.2 ms on an H200. Where it costs more, all
#: slices together have less, and each its part of that. It is longer for more than FEW slices: each waits for all
#: others anyway, and nvcd's own time grows with the number of changes. For more than MANY, that is kept at about a
#: hundredth of a processor.
TURN, FEW, MANY = 3 * MS // 2, 4, 8
#: Shorter steps are single kernels that a program waits for. Nobody sees how long one takes, and the device is idle
#: between them: they get WAITED.
SINGLE, WAITED = MS // 10, 10 * MS
ROUND = 160 * MS  # until each slice had a lease; the credit that the shim saves covers more than twice that
#: A step is known from so many, or from so much GPU time, and from so much of it in any case.
STEPS, ENOUGH, LEAST = 4, 400 * MS, 5 * MS
REMEMBERED = 10 * SECOND  # how long a slice counts after it did something
PATIENCE = 4 * SECOND  # for which a longer lease must have fitted; a shorter one is used at once
SAME = 1.25  # lengths that differ by less are not worth a change


class Work(Value):
    """What the ledger of a slice says of a device, in all."""

    charged: int  # nanoseconds
    steps: int


class KnownStep(Value):
    """What is known of the length of one slice's steps."""

    base: Work  # as it was when the step was last learnt
    step: int = 0  # nanoseconds of GPU time; 0: not known
    at: int = 0  # when that was learnt


class Fit(Value):
    """What was learnt of a device. Times in nanoseconds."""

    quantum: int = 0  # 0: nothing was learnt yet
    longer_since: int = 0  # since when a longer one would fit; 0: it would not
    known: tuple[tuple[str, KnownStep], ...] = ()  # by the slice's key


def learn(fit: Fit, works: Mapping[str, Work], now: int) -> Fit:
    """What is known after one more look at the ledgers of a device's slices. All others are forgotten."""
    before = dict(fit.known)
    found = {key: _learnt_step(before.get(key), work, now) for key, work in works.items()}
    steps = [one.step for one in found.values() if one.step and now - one.at < REMEMBERED]
    known = tuple(found.items())
    if not steps:
        return Fit(fit.quantum, 0, known)
    fitting = fitting_quantum(steps)
    if not fit.quantum or fitting * SAME < fit.quantum:
        return Fit(fitting, 0, known)
    if fitting <= fit.quantum * SAME:
        return Fit(fit.quantum, 0, known)
    since = fit.longer_since or now
    return Fit(fitting, 0, known) if now - since >= PATIENCE else Fit(fit.quantum, since, known)


def _learnt_step(before: KnownStep | None, work: Work, now: int) -> KnownStep:
    if before is None or work.charged < before.base.charged or work.steps < before.base.steps:
        return KnownStep(work, before.step if before else 0, before.at if before else 0)
    charged, steps = work.charged - before.base.charged, work.steps - before.base.steps
    if charged < LEAST or steps < STEPS and charged < ENOUGH or not work.steps:
        return before  # a shim of an earlier version counts no steps
    return KnownStep(work, charged // max(steps, 1), now)


def fitting_quantum(steps: list[int]) -> int:
    """The quantum for slices with such steps: what fits the one that needs the shortest."""
    count = len(steps)
    turn = min(TURN * max(count, FEW) // FEW * max(count, MANY) // MANY, ROUND // count)
    return max(min(ROUND // count, *(_fitting_one(step, turn) for step in steps)), SHORTEST)


def _fitting_one(step: int, turn: int) -> int:
    if step < SINGLE:
        return WAITED
    count = -(-turn // step)
    # Half a step less than so many take: which step is the last does not hang on how exactly it is measured.
    return min(step * (2 * count - 1) // 2, LONGEST)


def quantum_of(force: InForce, learnt: int) -> int:
    """The quantum in force on a device: as learnt, within the operator's bound and what the policy makes of it.

    Under caps it only becomes longer than the ordinary one, for slices that never wait: changes between those take
    time of both, and neither has more than its cap to make up for it.

    Whatever else shall decide it, such as the model of the GPU, needs a field of `InForce`. `SliceIndex.apply` in
    slice_index.py has that made, and knows the slices' records: `EntryDevice.name` is the model's name.
    """
    fitting = min(learnt, LONGEST // force.policy.quanta)
    if not learnt or force.policy.bound == EQUAL:
        return force.quantum
    if force.policy.bound == CAP:
        return force.quantum if force.longest else max(force.quantum, fitting)
    return min(fitting, force.longest) if force.longest else fitting
