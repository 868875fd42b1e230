"""Dumps with hidden constants that the kernel never makes; its own: tests/kernel/test_cgroup_v2_hardened.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nvc.apply.cgroup.blinding import unblind

if TYPE_CHECKING:
    from nvc.apply.cgroup.program import Instruction

AX = 11
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
        [(0x06, 0, 0, 0, 1), FIRST, SECOND, (0x0F, 1, AX, 0, 0), END],  # by the long jump
        [(0x05, 0, 0, 9, 0), END],
        [(0x18, 1, 0, 0, 5)],
        [(0x18, 1, 0, 0, 5), (0, 0, AX, 0, 0), END],
        [(0x05, 0, 0, -9, 0), END],
    ],
)
def test_other_uses_of_the_hidden_register_are_refused(code: list[Instruction]) -> None:
    assert unblind(code) is None
