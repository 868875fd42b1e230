"""The interpreter held against the kernel: random programs, attached and asked by real opens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import examples
from support.device_cgroup import CHAR, NULL, READ, WRITE, Group, Prober, load

from nvc.apply.cgroup.evaluate import answer_to

if TYPE_CHECKING:
    from nvc.apply.cgroup.program import Instruction

#: Devices without a driver here, or harmless to open.
DEVICES = (NULL, (1, 5), (195, 0), (195, 1), (240, 0))
FLAGS = {READ: os.O_RDONLY, WRITE: os.O_WRONLY, READ | WRITE: os.O_RDWR}
in_kernel = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Group, Prober]]:
    with Group.make(2) as group, Prober(group) as inside:
        for device in DEVICES:
            inside.node(device)
        yield group, inside


registers = st.integers(2, 5)
immediates = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-2, 70)
CLASSES = st.sampled_from([4, 7])
steps = st.one_of(
    st.tuples(st.sampled_from([0x00, 0x10, 0x20, 0x40, 0x50, 0xA0, 0xB0]), CLASSES, registers, immediates),
    st.tuples(st.sampled_from([0x30, 0x90]), CLASSES, registers, immediates.filter(bool)),
    st.tuples(st.sampled_from([0x60, 0x70, 0xC0]), CLASSES, registers, st.integers(0, 31)),
    st.tuples(st.sampled_from([0x60, 0x70, 0xC0]), st.just(7), registers, st.integers(0, 63)),
    st.tuples(st.just(0x80), CLASSES, registers, st.just(0)),
    st.tuples(
        st.sampled_from([0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xA0, 0xB0, 0xC0]),
        st.sampled_from([12, 15]),  # the same with a register
        registers,
        registers,
    ),
    st.tuples(
        st.sampled_from([0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0]),
        st.sampled_from([5, 6]),
        registers,
        immediates,
    ),
    st.tuples(
        st.sampled_from([0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0]),
        st.sampled_from([13, 14]),
        registers,
        registers,
    ),
)


def arithmetic(drawn: list[tuple[int, int, int, int]]) -> list[Instruction]:
    """A program that computes with the context and allows by the parity of all the bits that come out."""
    code: list[Instruction] = [
        (0x61, 2, 1, 0, 0),
        (0x69, 3, 1, 2, 0),
        (0x61, 4, 1, 4, 0),
        (0x61, 5, 1, 8, 0),
        (0x18, 6, 0, 0, -559038737),
        (0, 0, 0, 0, -1056969216),
        (0xAF, 4, 6, 0, 0),
        (0x1F, 5, 6, 0, 0),
    ]
    for op, kind, dst, operand in drawn:
        source, imm = (operand, 0) if kind & 8 else (0, operand)
        jump = kind & 7 in (5, 6)
        code.append((op | kind, dst, source, 1 if jump else 0, imm))
        if jump:
            code.append((0xA7, dst, 0, 0, 0x5A5A5A5))
    code.append((0xBF, 0, 2, 0, 0))
    code += [(0xAF, 0, register, 0, 0) for register in (3, 4, 5)]
    for shift in (32, 16, 8, 4, 2, 1):
        code += [(0xBF, 6, 0, 0, 0), (0x77, 6, 0, 0, shift), (0xAF, 0, 6, 0, 0)]
    return [*code, (0x57, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)]


@in_kernel
@given(st.lists(steps, max_size=25))
@example([(0x30, 12, 2, 3), (0x90, 15, 4, 5), (0xC0, 4, 5, 31), (0x80, 7, 4, 0)])
def test_arithmetic(place: tuple[Group, Prober], drawn: list[tuple[int, int, int, int]]) -> None:
    group, inside = place
    code = arithmetic(drawn)
    program = load(code)
    group.attach(program, 0)
    os.close(program)
    for device in DEVICES:
        for access, flags in FLAGS.items():
            expected = answer_to(code, access << 16 | CHAR, *device)[0]
            assert inside.opens(device, flags) == bool(expected), (device, access)
            assert expected in (0, 1)
