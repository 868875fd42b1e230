"""What is held against utilization, and who is accused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.daemon.audit.overuse import CAP, LEASES, LEDGER, MARGIN, PATIENCE, SECOND, Overuse, UsageFigures

PLACE = ("key", "GPU-1")
STEP = 2 * SECOND


def look(
    seconds: float,
    used: float,
    cap: float = 0.0,
    charged: float = 0.0,
    launches: int = 0,
    held: float = -1.0,
) -> Overuse:
    """After samples each two seconds; `charged` and `held` are parts of the time, `launches` are in a second."""
    overuse = Overuse()
    for number in range(int(seconds / 2) + 1):
        now = number * STEP
        overuse.look(
            {
                PLACE: UsageFigures(
                    used,
                    cap,
                    int(charged * now) if charged >= 0 else -1,
                    launches * number * 2,
                    int(held * now) if held >= 0 else -1,
                )
            },
            now,
        )
    return overuse


@pytest.mark.parametrize(
    "wanted, figures",
    [
        (CAP, {"used": 1.0, "cap": 0.25, "charged": 0.0}),
        (CAP, {"used": 1.0, "cap": 0.25, "charged": 0.25, "launches": 10_000_000}),  # a ledger that lies
        (CAP, {"used": 1.0, "cap": 0.25, "charged": 1.0, "launches": 10_000_000}),
        (CAP, {"used": 1.0, "cap": 0.25, "charged": -1.0}),  # no ledger
        (LEASES, {"used": 0.5, "held": 0.0}),
        (LEASES, {"used": 0.5, "cap": 0.9, "charged": 0.5, "held": 0.1}),
        (LEDGER, {"used": 0.5, "cap": 0.9, "charged": 0.0}),
        (LEDGER, {"used": 0.6, "charged": 0.1, "held": 0.48}),  # another process, in its turns
        (None, {"used": 0.6, "charged": 0.1, "launches": 100_000, "held": 0.6}),  # kernels of 1 us
        (None, {"used": 0.48, "charged": 0.4, "held": 0.48}),
        (None, {"used": 0.5, "cap": 0.25, "charged": 0.1, "launches": 100_000}),
        (None, {"used": 1.0}),  # no cap, no turns
        (None, {"used": 1.0, "charged": 1.0, "held": 1.0}),
        (None, {"used": 0.27, "cap": 0.25, "charged": 0.25, "launches": 250}),
        (None, {"used": 0.55, "cap": 0.25, "charged": 0.24, "launches": 48_000}),  # kernels of 5 us
        (None, {"used": 1.0, "cap": 0.75, "charged": 0.75}),
        (None, {"used": 0.05, "cap": 0.5, "charged": 0.0}),  # fills and copies
    ],
)
def test_who_is_accused(wanted: str | None, figures: dict[str, float]) -> None:
    found = look(120, **figures).verdicts()  # type: ignore[arg-type]
    assert found.get(PLACE) is None if wanted is None else found[PLACE].rule == wanted


def test_it_takes_several_looks() -> None:
    assert not look(6, 1.0, 0.1).verdicts()
    verdict = look(10, 1.0, 0.1).verdicts()[PLACE]
    assert verdict.used == pytest.approx(1) and verdict.explained == pytest.approx(0.1)


@pytest.mark.parametrize("length", [0.5, 2, 5])
def test_kernels_that_are_long(length: float) -> None:
    """At a cap of 10 %: they run without a pause, and are charged when they have ended."""
    overuse, charged, now = Overuse(), 0, 0
    for _ in range(20):
        for number in range(int(length * 10)):  # tenths of seconds, of which `length` are busy
            now += SECOND
            busy = min(max(length - number, 0), 1)
            charged += int(length * SECOND) if 0 < busy <= 1 and number + 1 >= length else 0
            overuse.look({PLACE: UsageFigures(busy, 0.1, charged, 0, -1)}, now)
            assert not overuse.verdicts(), (number, overuse.verdicts())


def test_it_ends_when_the_slice_behaves() -> None:
    overuse = look(60, 1.0, 0.1)
    now, looks = 60 * SECOND, 0
    while overuse.verdicts():
        now, looks = now + STEP, looks + 1
        overuse.look({PLACE: UsageFigures(0.0, 0.1, 0, 0, -1)}, now)
    assert 0 < looks < 10
    overuse.keep(set())
    assert not overuse.before and not overuse.sums


@given(
    st.lists(
        st.tuples(
            st.integers(1, 20 * SECOND),  # since the look before
            st.floats(0, 1),
            st.integers(-1, 1 << 64),
            st.integers(0, 1 << 64),
            st.integers(-1, 1 << 62),
        ),
        max_size=40,
    ),
    st.sampled_from([0.0, 0.1, 0.5, 0.99]),
)
def test_a_ledger_that_jumps_never_accuse_who_keeps_its_cap(
    looks: list[tuple[int, float, int, int, int]], cap: float
) -> None:
    """Whatever a tenant writes to its ledger, and whenever NVML is asked."""
    overuse, now = Overuse(), 0
    for passed, part, charged, launches, held in looks:
        now += passed
        overuse.look({PLACE: UsageFigures(part * min(cap, MARGIN), cap, charged, launches, held)}, now)
        assert not overuse.verdicts()
        for rule, one in overuse.sums.get(PLACE, {}).items():
            assert 0 <= one.beyond <= 2 * PATIENCE[rule]
