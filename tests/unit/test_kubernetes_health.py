"""When a GPU counts as ill, and when it is well again; what the vendor's code says is not trusted."""

from __future__ import annotations

import json

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
    st.text(max_size=60)
    | st.builds(
        json.dumps,
        st.recursive(
            st.sampled_from([UUID_0, "", "1g.10gb", "1g 10gb", "xid", -2, -1, 0, 9**30, True, None]),
            lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.just("xid"), inner),
        ),
    )
)
def test_lines_of_any_shape(line: str) -> None:
    try:
        parse(line.encode())
    except ValueError:
        pass


def test_what_is_told_of_a_gpu() -> None:
    told = [UUID_0, False, 7, -1, True, [1, 2, 3, 4, 5, 6, 7, 8], [["MIG-1", "1g.10gb+me"]]]
    found = parse(json.dumps([told]).encode())
    assert isinstance(found, Round) and found.gpus == {UUID_0: Seen(False, 7, -1, True)}
    assert found.figures[UUID_0].memory_mhz == 8 and found.profiles == {"MIG-1": "1g.10gb+me"}
    assert parse(json.dumps({"xid": [UUID_0, 79]}).encode()) == (UUID_0, 79)
    assert parse(b'"no\\u001b answer"') == Round({}, {}, {}, "no? answer")
    for place, wrong in ((0, ""), (0, "x" * 97), (2, -2), (5, [1]), (6, [["MIG-1", "a b"]])):
        with pytest.raises(ValueError):
            parse(json.dumps([[*told[:place], wrong, *told[place + 1 :]]]).encode())


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
