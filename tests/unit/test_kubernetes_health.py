"""When a GPU counts as ill, and when it is well again; what the vendor's code says is not trusted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.facts import UUID_0, UUID_1

from nvc.kubernetes.health.board import HEALTHY, UNHEALTHY, UNKNOWN, Board, Condition
from nvc.kubernetes.health.health import UNTIL_RESET, Judge, Round, Seen, parse

QUIET = 300.0
WELL = Seen(False, 0, 0, True)


def round_of(**changes: object) -> Round:
    return Round({UUID_0: WELL.replace(**changes), UUID_1: WELL}, {}, {})


def kinds(judge: Judge, found: Round, now: float) -> list[tuple[str, str]]:
    conditions = judge.conditions((UUID_0, UUID_1), found, now)
    assert conditions[UUID_1] == Condition(HEALTHY)
    assert (conditions[UUID_0].health == UNHEALTHY) == bool(conditions[UUID_0].problems)
    return [(one.kind, one.value) for one in conditions[UUID_0].problems]


def test_an_xid_is_over_after_quiet() -> None:
    judge = Judge(QUIET)
    judge.xid(UUID_0, 94, 1000.0)
    assert kinds(judge, round_of(), 1000.0) == [("xid", "94")]
    judge.xid(UUID_0, 94, 1200.0)
    assert kinds(judge, round_of(), 1000.0 + QUIET) == [("xid", "94")]
    assert kinds(judge, round_of(), 1200.0 + QUIET) == []


@pytest.mark.parametrize("number", sorted(UNTIL_RESET))
def test_an_xid_that_wants_a_reset_is_over_when_the_gpu_was_away(number: int) -> None:
    judge = Judge(QUIET)
    judge.xid(UUID_0, number, 0.0)
    assert kinds(judge, round_of(), 10 * QUIET) == [("xid", str(number))]
    (lost,) = judge.conditions((UUID_0,), Round({}, {}, {}), 11 * QUIET)[UUID_0].problems
    assert (lost.kind, lost.evict) == ("lost", True)
    assert kinds(judge, round_of(), 12 * QUIET) == []


def test_states_are_over_when_nvml_says_so() -> None:
    judge = Judge(QUIET)
    assert kinds(judge, round_of(remapping=1), 0.0) == [("remapping", "pending")]
    assert kinds(judge, round_of(remapping=2), 1.0) == [("remapping", "failed")]
    assert kinds(judge, round_of(lost=True), 2.0) == [("lost", "")]
    assert kinds(judge, round_of(), 3.0) == []


def test_memory_errors_count_while_they_become_more() -> None:
    """Those from before the plugin began count for nothing: they may be months old."""
    judge = Judge(QUIET)
    assert kinds(judge, round_of(ecc=7), 0.0) == []
    assert kinds(judge, round_of(ecc=8), 1.0) == [("ecc", "8")]
    assert kinds(judge, round_of(ecc=8), 1.0 + QUIET) == []


def test_what_is_not_known_is_not_healthy() -> None:
    found = Judge(QUIET).conditions((UUID_0,), Round({}, {}, {}, "no answer"), 0.0)
    assert found == {UUID_0: Condition(UNKNOWN, reason="NVML: no answer")}
    silent = Judge(QUIET).conditions((UUID_0,), round_of(events=False), 0.0)[UUID_0]
    assert (silent.health, silent.text) == (HEALTHY, "the driver does not tell of Xids")


@given(
    st.lists(
        st.text(max_size=60)
        | st.builds(
            " ".join,
            st.lists(
                st.sampled_from(
                    ["gpu", "xid", "mig", "figures", "problem", UUID_0, "0", "-1", "-2", "1g.10gb", "9" * 30]
                )
            ),
        )
    )
)
def test_lines_of_any_shape(lines: list[str]) -> None:
    try:
        parse([line.replace("\n", " ") for line in lines])
    except ValueError:
        pass


def test_a_board_tells_of_changes_alone() -> None:
    board = Board()
    waiting = board.changes(0.001)
    next(waiting)
    assert board.of(UUID_0).health == UNKNOWN
    assert board.set({UUID_0: Condition(HEALTHY)})
    since = board.of(UUID_0).since
    assert since and not board.set({UUID_0: Condition(HEALTHY)})
    assert board.of(UUID_0).since == since
    next(waiting)
    board.close()
    assert list(waiting) == []
