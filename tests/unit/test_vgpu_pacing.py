"""For how much of the time slices that run at once may have work: by weight, and no less than that needs."""

from __future__ import annotations

import itertools
import os

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from support import examples

from nvc.model.slices import quota
from nvc.model.slices.ledger import Budget
from nvc.model.slices.policy import POLICIES
from nvc.slices.policy.entitlement import Demand, InForce, entitlements, in_force
from nvc.slices.policy.pacing import WHOLE, Reading, Use, paces, read
from nvc.slices.policy.policies import DevicePolicy

ALWAYS = Use(1.0)
SECOND = 1_000_000_000


def force(*weights: int, cores: tuple[int, ...] = (), paused: str = "") -> InForce:
    """Slices `a`, `b` and so on under `concurrent`."""
    names = [chr(ord("a") + number) for number in range(len(weights))]
    caps = cores or (0,) * len(weights)
    return in_force(
        DevicePolicy(),
        tuple(
            Demand(key, key in paused, policy=POLICIES.index("concurrent"), cores=cap, weight=weight)
            for key, weight, cap in zip(names, weights, caps)
        ),
    )


def pace(found: InForce, *uses: Use) -> list[int]:
    keys = [terms.key for terms in found.terms]
    return list(paces(found, dict(zip(keys, uses))).values())


def had(duties: list[float]) -> list[float]:
    """What each has of the device: a k-th while k have work, each by chance."""
    parts = [0.0] * len(duties)
    for works in itertools.product((False, True), repeat=len(duties)):
        chance = 1.0
        for one, duty in zip(works, duties):
            chance *= duty if one else 1 - duty
        for number, one in enumerate(works):
            parts[number] += chance / sum(works) if one else 0.0
    return parts


def test_equal_weights_hold_nobody_back() -> None:
    assert force(2, 2).weighed == () and paces(force(2, 2), {"a": ALWAYS, "b": ALWAYS}) == {}
    assert force(3, 1, paused="b").weighed == () and entitlements(force(1, 1)) == {}


@given(st.lists(st.integers(1, 32), min_size=2, max_size=8), st.data())
@settings(max_examples=examples(200))
def test_somebody_always_goes_on(weights: list[int], data: st.DataObject) -> None:
    """The heaviest of those that always have work is held back by nobody who has less than its part."""
    found = force(*weights)
    uses = [Use(data.draw(st.sampled_from((0.0, 1.0)))) for _ in weights]
    given_ = pace(found, *uses)
    working = [(weight, one) for weight, one, use in zip(weights, given_, uses) if use.busy]
    assert not working or max(working)[1] == WHOLE
    assert all(1 <= one <= WHOLE for one in given_)
    assert all(one == WHOLE for one, use in zip(given_, uses) if not use.busy)
    equal = len({weight for weight, _ in working}) == 1
    assert not equal or all(one == WHOLE for _, one in working)


@given(st.lists(st.integers(1, 32), min_size=2, max_size=7))
@settings(max_examples=examples(60), deadline=None)
def test_any_weights(weights: list[int]) -> None:
    """Each has its part, more weight never means a longer pause, and the device is never without work."""
    found = pace(force(*weights), *[ALWAYS] * len(weights)) or [WHOLE] * len(weights)
    wanted = [weight / sum(weights) for weight in weights]
    assert had([one / 100 for one in found]) == approx(wanted, abs=0.015)
    assert max(found) == WHOLE
    assert sorted(found) == [one for _, one in sorted(zip(weights, found))]


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
@settings(max_examples=examples(100), deadline=None)
def test_any_figures(slices: list[tuple[int, float, float]]) -> None:
    """Whatever the ledgers say, a pace is a percentage, and slices without work hold back nobody."""
    weights = [weight for weight, _, _ in slices]
    uses = [Use(busy, held * (1 - busy)) for _, busy, held in slices]
    found = pace(force(*weights), *uses)
    assert all(1 <= one <= WHOLE for one in found)
    without = [use if number else Use() for number, use in enumerate(uses)]
    others = [use if number else Use(0.0, 0.01) for number, use in enumerate(uses)]
    assert pace(force(*weights), *without) == pace(force(*weights), *others)


def test_who_is_held_back_is_known_to_want_more() -> None:
    """Its pace does not change what it is."""
    assert pace(force(3, 1), ALWAYS, Use(0.5, 0.5)) == [100, 50] == pace(force(3, 1), ALWAYS, ALWAYS)
    assert pace(force(3, 1), ALWAYS, Use(0.0, 0.5)) == [100, 50]


def test_what_one_leaves_goes_to_the_others() -> None:
    assert pace(force(3, 1), Use(), ALWAYS) == [100, 100]
    assert pace(force(3, 1), Use(0.01), ALWAYS) == [100, 100]
    assert pace(force(3, 1), Use(0.3), ALWAYS)[1] > 90 > pace(force(3, 1), Use(0.7), ALWAYS)[1] > 60
    assert pace(force(3, 1), ALWAYS, Use(0.2)) == [100, 100]


def test_what_a_tenant_says_is_bounded() -> None:
    """Its programs write the figures: what they say is no more than the time that passed, and no less than none."""
    first = read(None, Budget(charged=5), 0)
    assert first.use is None
    much = read(first, Budget(charged=90 * SECOND, waited=90 * SECOND), SECOND)
    assert much.use == Use(1.0, 0.0)
    less = read(much, Budget(), 2 * SECOND)
    assert less.use is not None and [less.use.busy, less.use.held] == approx([0.6, 0.0])
    assert read(much, Budget(), SECOND) == Reading(SECOND, Budget())


def test_a_pace_in_a_quota_ends_by_itself(scratch: str) -> None:
    """And a change of the limits leaves it alone."""
    fd = os.open(os.path.join(scratch, "quota"), os.O_RDWR | os.O_CREAT)
    devices = tuple(quota.QuotaDevice(f"GPU-{digit * 8}-0000-0000-0000-000000000000", 1) for digit in "12")
    quota.write(fd, devices)
    quota.set_pace(fd, 1, 50, 7 * SECOND)
    quota.write(fd, tuple(one.replace(cores=20) for one in quota.read(fd)))
    assert [one.paced(6 * SECOND) for one in quota.read(fd)] == [None, 50]
    assert quota.read(fd)[1].paced(7 * SECOND) is None
    quota.set_pace(fd, 1, 0, 0)
    assert quota.read(fd)[1].pace == 0
    os.close(fd)
