"""Hidden constants: a second implementation of what the kernel does, undone by `nvc.apply.cgroup.blinding`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.apply.cgroup.blinding import unblind

if TYPE_CHECKING:
    from nvc.apply.cgroup.program import Instruction

AX = 11
ALU = (0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x90, 0xA0, 0xB0)
JUMPS = (0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0)


def signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def blind(code: list[Instruction], random: int) -> list[Instruction]:
    """What bpf_jit_blind_constants makes of a program, jumps adjusted."""
    groups: list[list[Instruction]] = []
    for index, (op, dst, _, off, imm) in enumerate(code):
        kind = op & 7
        wide = 7 if kind in (7, 5, 2, 0) else 4
        hidden: list[Instruction] = [
            (0xB0 | wide, AX, 0, 0, signed(imm ^ random)),
            (0xA0 | wide, AX, 0, 0, random),
        ]
        if op in (0xB4, 0xB7) and imm == 0:
            groups.append([(0xAF, dst, dst, 0, 0)])
        elif kind in (4, 7) and not op & 8 and op & 0xF0 in ALU:
            groups.append([*hidden, (op | 8, dst, AX, off, 0)])
        elif kind in (5, 6) and not op & 8 and op & 0xF0 in JUMPS:
            groups.append([*hidden, (op | 8, dst, AX, off, 0)])
        elif op == 0x18:
            upper = code[index + 1][4]
            groups.append(
                [
                    (0xB7, AX, 0, 0, signed(upper ^ random)),
                    (0xA7, AX, 0, 0, random),
                    (0x67, AX, 0, 0, 32),
                    (0xBF, dst, AX, 0, 0),
                ]
            )
        elif op == 0:
            before = code[index - 1]
            groups.append(
                [
                    (0xB4, AX, 0, 0, signed(before[4] ^ random)),
                    (0xA4, AX, 0, 0, random),
                    (0x4F, before[1], AX, 0, 0),
                ]
            )
        elif kind == 2:
            groups.append([*hidden, (op | 1, dst, AX, off, 0)])
        else:
            groups.append([code[index]])
    starts = [sum(map(len, groups[:index])) for index in range(len(groups) + 1)]
    out: list[Instruction] = []
    for index, (group, original) in enumerate(zip(groups, code)):
        *first, (op, dst, src, off, imm) = group
        if op & 7 in (5, 6) and op != 0x95:
            target = starts[index + 1 + (original[4] if op == 0x06 else original[3])]
            distance = target - (starts[index] + len(group))
            off, imm = (0, distance) if op == 0x06 else (distance, imm)
        out += [*first, (op, dst, src, off, imm)]
    return out


registers = st.integers(0, 9)
immediates = st.integers(-(1 << 31), (1 << 31) - 1)
zero = st.just(0)
arithmetic = st.sampled_from([kind | op for kind in (4, 7) for op in ALU if op != 0xB0])
offsets = st.integers(-64, 64)
plain = st.one_of(
    st.tuples(arithmetic, registers, zero, zero, immediates),
    st.tuples(st.sampled_from([0xB4, 0xB7]), registers, zero, zero, immediates.filter(bool)),
    st.tuples(st.just(0xB7), registers, zero, zero, zero),
    st.tuples(st.sampled_from([0x64, 0x77, 0xC7]), registers, zero, zero, st.integers(0, 31)),
    st.tuples(st.sampled_from([0x0F, 0xBC, 0xBF]), registers, registers, zero, zero),
    st.tuples(st.sampled_from([0x62, 0x6A, 0x72, 0x7A]), registers, zero, offsets, immediates),
    st.tuples(st.sampled_from([0x61, 0x79]), registers, registers, offsets, zero),
    st.tuples(st.just("wide"), registers, immediates, immediates, zero),
    st.tuples(st.just("jump"), registers, st.sampled_from([5, 6]), st.sampled_from(JUMPS), immediates),
    st.tuples(st.just("goto"), st.sampled_from([0x05, 0x06]), zero, zero, zero),
)


@st.composite
def programs(draw: st.DrawFn) -> list[Instruction]:
    """Any instructions that may be blinded, with jumps both ways, never into the middle of a wide constant."""
    parts = draw(st.lists(plain, max_size=25))
    code: list[Instruction] = []
    places: list[int] = []
    jumps: list[tuple[int, bool]] = []
    for part in parts:
        places.append(len(code))
        if part[0] == "wide":
            code += [(0x18, part[1], 0, 0, part[2]), (0, 0, 0, 0, part[3])]
        elif part[0] == "jump":
            jumps.append((len(code), False))
            code.append((part[2] | part[3], part[1], 0, 0, part[4]))
        elif part[0] == "goto":
            jumps.append((len(code), part[1] == 0x06))
            code.append((part[1], 0, 0, 0, 0))
        else:
            code.append(part)
    places.append(len(code))
    code.append((0x95, 0, 0, 0, 0))
    for position, long in jumps:
        distance = draw(st.sampled_from(places)) - position - 1
        op, dst, src, off, imm = code[position]
        code[position] = (op, dst, src, 0, distance) if long else (op, dst, src, distance, imm)
    return code


@given(programs(), immediates)
def test_blinding_is_undone(code: list[Instruction], random: int) -> None:
    assert unblind(blind(code, random)) == code


END: Instruction = (0x95, 0, 0, 0, 0)
FIRST: Instruction = (0xB7, AX, 0, 0, 5)
SECOND: Instruction = (0xA7, AX, 0, 0, 6)


@pytest.mark.parametrize(
    "code",
    [
        [FIRST],
        [FIRST, SECOND],
        [FIRST, SECOND, END],
        [FIRST, END, END],
        [SECOND, FIRST, (0x0F, 1, AX, 0, 0), END],
        [(0xB4, AX, 0, 0, 5), SECOND, (0x0F, 1, AX, 0, 0), END],
        [FIRST, SECOND, (0x0C, 1, AX, 0, 0), END],  # 32 bits of a 64-bit pair
        [FIRST, SECOND, (0x0F, AX, AX, 0, 0), END],
        [FIRST, SECOND, (0x0F, 1, 2, 0, 0), END],
        [FIRST, SECOND, (0xDB, 1, AX, 0, 0), END],  # atomic
        [(0xBF, 1, AX, 0, 0), END],
        [(0xBF, AX, 1, 0, 0), END],
        [(0x05, 0, 0, 1, 0), FIRST, SECOND, (0x0F, 1, AX, 0, 0), END],  # into the middle
        [(0x05, 0, 0, 9, 0), END],
        [(0x18, 1, 0, 0, 5)],
        [(0x18, 1, 0, 0, 5), (0, 0, AX, 0, 0), END],
        [(0x05, 0, 0, -9, 0), END],
    ],
)
def test_other_uses_of_the_hidden_register_are_refused(code: list[Instruction]) -> None:
    assert unblind(code) is None
