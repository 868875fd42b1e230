"""Device programs as instructions: the block that allows our nodes, the interpreter, what may be loaded again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.device_cgroup import CHAR, SHAPES, ModelRule, first_match

from nvc.apply.cgroup.evaluate import MOST_STEPS, allows, answer_to
from nvc.apply.cgroup.program import (
    allow_block,
    encode,
    reloadable,
)

if TYPE_CHECKING:
    from nvc.apply.cgroup.program import Instruction, Rule

DENY: list[Instruction] = [(0xB7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)]
numbers = st.integers(0, 12) | st.sampled_from([195, 255, 4095, (1 << 20) - 1])
devices = st.tuples(st.integers(0, 4) | st.just(4095), numbers)
accesses = st.integers(1, 7)
kinds = st.integers(1, 2)
model_rules = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from([1, 2]), st.integers(-1, 4), st.integers(-1, 12), st.integers(1, 7)
    ),
    max_size=8,
)


@given(model_rules, st.lists(devices, max_size=5), devices, kinds, accesses, st.sampled_from(sorted(SHAPES)))
def test_union_is_the_old_program_and_ours(
    old: list[ModelRule], ours: list[Rule], device: Rule, kind: int, access: int, shape: str
) -> None:
    code = SHAPES[shape](old)
    before = first_match(old, kind, access, *device)
    assert answer_to(code, access << 16 | kind, *device)[0] == before
    mine = device in ours and kind == CHAR and not access & 1
    union = allow_block(tuple(ours)) + code
    assert answer_to(union, access << 16 | kind, *device)[0] == int(before or mine)
    assert allows(union, tuple(ours))
    assert reloadable(union)


def test_block_is_short() -> None:
    """Runs of minors are one comparison of two."""
    assert len(allow_block(tuple((195, minor) for minor in range(250)))) == 10
    assert len(allow_block(((195, 0), (195, 255), (510, 0), (510, 1)))) == 20


def test_block_refuses_more_than_its_jumps_can_span() -> None:
    with pytest.raises(ValueError, match="at most 4096"):
        allow_block(tuple((1, minor) for minor in range(5000)))
    largest = allow_block(tuple((1, minor) for minor in range(0, 8192, 2))) + DENY
    assert answer_to(largest, 6 << 16 | 2, 1, 8190)[0] == 1
    assert answer_to(largest, 6 << 16 | 2, 1, 8191)[0] == 0
    assert encode(largest)


def test_allows_asks_for_each_way_to_open() -> None:
    for access in (2, 4):
        code = SHAPES["runc"]([(True, CHAR, 195, 0, access)])
        assert not allows(code, ((195, 0),))
    assert allows(SHAPES["runc"]([(True, CHAR, 195, 0, 6)]), ((195, 0),))
    assert not allows(SHAPES["runc"]([(True, CHAR, 195, 0, 6)]), ((195, 0), (195, 1)))
    assert not allows(SHAPES["runc"]([(True, 1, 195, 0, 6)]), ((195, 0),))


@pytest.mark.parametrize(
    "code",
    [
        [],
        [(0x85, 0, 0, 0, 15), *DENY],  # a call
        [(0x61, 2, 10, -4, 0), *DENY],  # the stack
        [(0x61, 2, 1, 12, 0), *DENY],  # behind the context
        [(0x79, 2, 1, 0, 0), *DENY],  # eight bytes of it
        [(0x81, 2, 1, 0, 0), *DENY],  # with a sign
        [(0x07, 1, 0, 0, 4), *DENY],  # arithmetic on its address
        [(0xBC, 2, 1, 0, 0), *DENY],  # half of its address
        [(0x5D, 1, 2, 0, 0), *DENY],  # comparing what was never set
        [(0x55, 1, 0, 0, 0), *DENY], [(0xBF, 2, 3, 0, 0), *DENY],
        [(0xBF, 0, 2, 8, 0), *DENY],  # a move that extends a sign
        [(0xDC, 0, 0, 0, 16), *DENY],  # byte order
        [(0x18, 2, 1, 0, 5), (0, 0, 0, 0, 0), *DENY],  # a map
        [(0x18, 2, 0, 0, 5)],  # half a constant
        [(0xB7, 11, 0, 0, 0), *DENY],
        [(0x05, 0, 0, -1, 0), *DENY],  # for ever
        [(0x05, 0, 0, -9, 0), *DENY], [(0x05, 0, 0, 99, 0), *DENY],
        [(0xB7, 0, 0, 0, 1)],  # no end
        [(0xBF, 0, 1, 0, 0), (0x95, 0, 0, 0, 0)],  # an address as the answer
    ],
)  # fmt: skip
def test_what_is_not_known_counts_as_denying(code: list[Instruction]) -> None:
    assert answer_to(code, 6 << 16 | 2, 195, 0)[0] in (None, 0)
    assert not allows(code, ((195, 0),))


def test_steps_are_counted_over_all_questions() -> None:
    padding: list[Instruction] = [(0xB7, 0, 0, 0, 1)] * 1000
    code = [*padding, (0x95, 0, 0, 0, 0)]
    assert allows(code, tuple((195, minor) for minor in range(15)))
    assert not allows(code, tuple((195, minor) for minor in range(MOST_STEPS // 3000 + 1)))


@pytest.mark.parametrize(
    "instruction",
    [
        (0x85, 0, 0, 0, 1), (0x8D, 0, 0, 0, 1),
        (0x85, 0, 1, 0, 7),  # into another function
        (0xE5, 0, 0, 1, 0),  # may_goto
        (0x9D, 0, 0, 0, 0), (0x18, 1, 1, 0, 5),
        (0x18, 1, 0, 0, 5),  # without its second half
        (0xBF, 1, 2, 1, 0),  # of an arena
        (0xBF, 1, 2, -1, 0),  # of this CPU
        (0x21, 1, 2, 0, 0),  # fault-tolerant load
        (0xDB, 10, 1, -8, 0),  # atomic
        (0x20, 0, 0, 0, 0),  # of a packet
        (0xC0, 0, 0, 0, 0),  # speculation barrier
        (0xE7, 1, 0, 0, 0), (0xB7, 11, 0, 0, 0), (0xBF, 1, 12, 0, 0),
    ],
)  # fmt: skip
def test_what_a_dump_does_not_preserve_is_not_loaded_again(instruction: Instruction) -> None:
    assert not reloadable([instruction, *DENY])


@pytest.mark.parametrize(
    "instructions",
    [
        [(0x18, 1, 0, 0, 5), (0, 0, 0, 0, 7)], [(0x7B, 10, 1, -8, 0)], [(0x62, 10, 0, -8, 3)],
        [(0x79, 1, 10, -8, 0)], [(0xDC, 1, 0, 0, 32)], [(0xD7, 1, 0, 0, 32)], [(0xBF, 1, 2, 32, 0)],
        [(0x06, 0, 0, 0, 0)], [(0x1E, 1, 2, 0, 0)],
    ],
)  # fmt: skip
def test_plain_instructions_are_loaded_again(instructions: list[Instruction]) -> None:
    assert reloadable(instructions + DENY)
