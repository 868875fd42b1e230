"""Programs that try to have more of a GPU's time than their cap, with nvcd beside another tenant, in virtual time.

The other tenant has all that the cap leaves, and always has work. tests/gpu/test_adversary_time.py does the same.
As on a GPU, a change from one process's work to another's takes time, and waits and events of a process are
reached while the device is its own, and a context that is made takes 11 ms from others.
"""

from __future__ import annotations

import json

import pytest
from support.adversary_time import WAYS, Way
from support.beside import SWITCH_NS, Tenants
from support.nvcd import ask
from support.virtual import World, device_time

SECONDS = 10
SHORT = 4  # in `make test`
POINTS = 0.01
ROUNDING = 1e-9  # a part is the difference of two sums
BESIDE = 0.02  # that the other tenant may lack, or have too much
#: In `make test`: one that waits, one that does not, one that alternates, two that the host holds back, processes,
#: what leaves work behind, and what is late so often that the other one has to save time.
ALWAYS = (
    "honest",
    "queue",
    "alternate",
    "held-back",
    "processes",
    "queues-of-processes",
    "leaving",
    "new-modules",
    "held-one-by-one",
    "held-events",
    "held-gone",
)
CASES = [
    pytest.param(way, cap, SECONDS, id=f"{way.name}-{cap}", marks=pytest.mark.nightly)
    for cap in (10, 50)
    for way in WAYS
    if not way.copies
]
CASES += [pytest.param(way, 50, SHORT, id=f"{way.name}-short") for way in WAYS if way.name in ALWAYS]
#: Likewise, where a small cap takes most from the other: what makes contexts, with kernels and without.
CASES += [
    pytest.param(way, 10, SHORT, id=f"{way.name}-10-short")
    for way in WAYS
    if way.name in ("dying", "only-contexts")
]
#: Seconds that a wake-up takes on an H200's host: two, from the end of a lease to the next one's work, took 136 us.
WAKE = 68e-6


@pytest.mark.parametrize("way, cap, seconds", CASES)
def test_the_other_has_its_share(
    tenants: Tenants, take_time: str, work: str, way: Way, cap: int, seconds: int
) -> None:
    found = tenants.beside(work, [take_time, way.name, 1000, 1000], cap, seconds)
    assert found.share <= cap / 100 + POINTS + way.burst / seconds
    assert 1 - cap / 100 - BESIDE <= found.other <= 1 - cap / 100 + BESIDE + way.lends
    assert found.most <= 1 - cap / 100 + BESIDE + way.lends + way.swings
    if cap == 50:
        assert found.share >= way.least * cap / 500 - ROUNDING  # it goes on


@pytest.mark.parametrize("cap", (10, 50))
@pytest.mark.parametrize("name", ("honest", "held-events", "held-functions"))
def test_the_other_has_its_share_where_wake_ups_take_long(
    tenants: Tenants, take_time: str, work: str, world: World, name: str, cap: int
) -> None:
    world.wake(WAKE)
    (way,) = (way for way in WAYS if way.name == name)
    found = tenants.beside(work, [take_time, name, 1000, 1000], cap, SHORT)
    assert found.share <= cap / 100 + POINTS + way.burst / SHORT
    assert found.other >= 1 - cap / 100 - BESIDE


@pytest.mark.parametrize("wake", (0.0, 27e-6, WAKE))
def test_the_device_changes_hands_no_more_often_than_it_must(
    tenants: Tenants, take_time: str, work: str, world: World, wake: float
) -> None:
    """A turn of a slice with a small cap is for half of what nvcd gives it, at least: 29 turns a second of each."""
    world.wake(wake)
    tenants.beside(work, [take_time, "queue", 1000, 1000], 10, SHORT)
    (device,) = ask(tenants.place)["devices"]
    assert device["leases"] <= 66 * (SHORT + 2)  # two seconds before it is measured


def test_a_thread_that_launches_more_and_more_keeps_no_other_one_from_it(
    tenants: Tenants, take_time: str, work: str, world: World
) -> None:
    """Eight of its launches join what waits, and the one that lets this go on comes behind them."""
    world.wake(500e-6)
    found = tenants.beside(work, [take_time, "held-race", 1000, 1000], 10, SHORT)
    assert found.share > 0.08


USUAL = {"NVC_SIM_SWITCH_NS": SWITCH_NS}
#: Changes, and so contexts, take a third of the time of an H200, or three times as long; or the driver's time slice
#: does.
CARDS = {
    "usual": USUAL,
    "fast": {"NVC_SIM_SWITCH_NS": SWITCH_NS // 3},
    "slow": {"NVC_SIM_SWITCH_NS": 3 * SWITCH_NS},
    "short-slices": {**USUAL, "NVC_SIM_TIMESLICE_NS": 2_000_000 // 3},
    "long-slices": {**USUAL, "NVC_SIM_TIMESLICE_NS": 6_000_000},
}
ROWS = [("only-contexts", 10), ("dying", 10), ("dying", 50), ("held-events", 50), ("held-back", 50)]
#: In `make test`: those that differ most.
OFTEN = [(card, *row) for card in ("fast", "slow") for row in (ROWS[0], ROWS[3])]
ON_CARDS = [
    pytest.param(card, *row, SHORT) if (card, *row) in OFTEN
    else pytest.param(card, *row, SECONDS, marks=pytest.mark.nightly)
    for card in CARDS
    for row in ROWS
]  # fmt: skip


@pytest.mark.parametrize(
    "card", [pytest.param(card, marks=[] if card == "slow" else pytest.mark.nightly) for card in CARDS]
)
def test_a_card_is_measured(tenants: Tenants, card: str) -> None:
    """A context is 32 kernels of 10 us, with a change there and back; a tenth is added to that."""
    tenants.card = CARDS[card]
    (found,) = json.loads(tenants.calibrate())["measurements"]
    change = int(str(tenants.card["NVC_SIM_SWITCH_NS"]))
    slice_ = int(str(tenants.card.get("NVC_SIM_TIMESLICE_NS", 2_000_000)))
    assert found["change"] == pytest.approx(change, rel=0.02)
    assert found["making"] == pytest.approx(1.1 * 32 * (2 * change + 10_000), rel=0.05)
    # Each of the kernels waits for a time slice at most.
    assert found["lasts"] == pytest.approx(80e6 + 32 * (400_000 + 2 * change + slice_), rel=0.1, abs=16e6)


def test_a_device_in_use_is_not_measured(tenants: Tenants, work: str) -> None:
    """Else a tenant could make others pay more, or pay less itself."""
    tenants.start(50, work, "ns=1000000", "batch=0", "seconds=1e6")
    tenants.world.run(0.5)
    assert device_time(tenants.driver).total > 0.1
    (found,) = json.loads(tenants.calibrate())["measurements"]
    assert found["context"] and not found["making"]


#: What makes a context goes on faster while the other one's cap leaves the device idle, and so takes less from it.
#: nvcd assumes that the driver's time slice is 2 ms; with 6 ms it gives back too much.
MORE = {("slow", "dying", 50): 0.015, ("long-slices", "held-events", 50): 0.01}


@pytest.mark.parametrize("card, name, cap, seconds", ON_CARDS)
def test_the_other_has_its_share_on_a_card_that_was_measured(
    tenants: Tenants, take_time: str, work: str, card: str, name: str, cap: int, seconds: int
) -> None:
    tenants.card = CARDS[card]
    tenants.calibrate()
    (way,) = (way for way in WAYS if way.name == name)
    found = tenants.beside(work, [take_time, way.name, 1000, 1000], cap, seconds)
    assert found.share <= cap / 100 + POINTS + way.burst / seconds
    assert (
        1 - cap / 100 - BESIDE
        <= found.other
        <= 1 - cap / 100 + BESIDE + way.lends + MORE.get((card, name, cap), 0)
    )


#: What the other has on cards that were not measured: beyond its two points, and what it lacks or has too much.
NOT_MEASURED = [
    ("slow", "only-contexts", 10, -0.07),
    pytest.param("slow", "dying", 10, -0.06, marks=pytest.mark.nightly),
    pytest.param("slow", "held-events", 50, -BESIDE, marks=pytest.mark.nightly),
    ("fast", "only-contexts", 10, 0.055),
    pytest.param("fast", "held-events", 50, 0.035, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("card, name, cap, most", NOT_MEASURED)
def test_what_the_other_lacks_on_a_card_that_was_not(
    tenants: Tenants, take_time: str, work: str, card: str, name: str, cap: int, most: float
) -> None:
    tenants.card = CARDS[card]
    found = tenants.beside(work, [take_time, name, 1000, 1000], cap, SHORT)
    beyond = found.other - (1 - cap / 100)
    assert abs(beyond) <= abs(most) and (beyond < 0) == (most < 0)
    assert (abs(beyond) > BESIDE) == (abs(most) > BESIDE)
    assert found.share <= cap / 100 + POINTS
