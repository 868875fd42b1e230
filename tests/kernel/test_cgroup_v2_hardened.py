"""Device programs under JIT hardening, which hides the constants of a program or the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from support.device_cgroup import (
    DOCKER,
    GPU,
    NULL,
    NVIDIA,
    OTHER,
    SHAPES,
    Group,
    Prober,
    load,
    runc_shape,
)

from nvc.apply.cgroup.blinding import unblind
from nvc.apply.cgroup.program import decode, names_hidden_register
from nvc.base.errors import MountError
from nvc.kernel import bpf

if TYPE_CHECKING:
    from nvc.apply.cgroup.program import Instruction

#: They change settings of the whole machine, which other tests would notice.
pytestmark = pytest.mark.nightly
HARDEN = "/proc/sys/net/core/bpf_jit_harden"
RESTRICT = "/proc/sys/kernel/kptr_restrict"


def _read(path: str) -> str:
    with open(path, encoding="ascii") as text:
        return text.read()


def _write(path: str, value: str) -> None:
    with open(path, "w", encoding="ascii") as out:
        out.write(value)


@pytest.fixture
def setting() -> Iterator[Callable[[str, int], None]]:
    """`setting(path, value)` writes a file of /proc/sys, which is restored at the end."""
    before = {path: _read(path) for path in (HARDEN, RESTRICT)}
    try:
        yield lambda path, value: _write(path, str(value))
    finally:
        for path, value in before.items():
            _write(path, value)


def dump(program: int) -> bytes | None:
    return bpf.read_program(program).instructions


def without_zeros(code: list[Instruction] | None) -> list[Instruction]:
    """32-bit moves of 0 as 64-bit ones, which they equal: under blinding the two look the same."""
    assert code is not None
    return [
        (0xB7, dst, src, off, imm) if (op, imm) == (0xB4, 0) else (op, dst, src, off, imm)
        for op, dst, src, off, imm in code
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("still", [True, False])
def test_blinded_program_is_extended(
    group: Group, setting: Callable[[str, int], None], shape: str, still: bool
) -> None:
    setting(HARDEN, 2)
    program = load(SHAPES[shape](DOCKER))
    raw = dump(program)
    assert raw is not None and names_hidden_register(raw)
    before = group.attach(program, bpf.ALLOW_MULTI)
    setting(HARDEN, 2 if still else 0)
    with Prober(group) as inside:
        change = group.prepare()
        change.apply()
        after = group.attached
        assert after != (before,)
        for device in (NULL, *NVIDIA, (10, 200), (136, 9)):
            assert inside.opens(device)
        assert not inside.opens(OTHER)
        group.prepare().apply()
        assert group.attached == after
        change.undo()
        assert group.attached == (before,)
        assert inside.opens(NULL) and not inside.opens(GPU)


def test_every_blinded_form_is_known(setting: Callable[[str, int], None]) -> None:
    """One program with each instruction whose constant the kernel hides, and jumps both ways over them."""
    code = [(0xB7, 0, 0, 0, 0), (0x61, 2, 1, 4, 0), (0x61, 3, 1, 8, 0)]
    code += [(kind | op, 2, 0, 0, 0x1234567) for kind in (4, 7) for op in range(0x00, 0x60, 0x10)]
    code += [(kind | op, 3, 0, 0, 7) for kind in (4, 7) for op in (0x60, 0x70, 0x90, 0xA0, 0xC0)]
    for kind in (5, 6):
        for op in (0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0):
            code += [
                (0x61, 3, 1, 8, 0),
                (kind | op, 3, 0, 2, 300 - op),
                (0xB7, 0, 0, 0, op),
                (0xB4, 0, 0, 0, -op),
            ]
    code += [(0x18, 4, 0, 0, -2), (0, 0, 0, 0, 0x7FFFFFFF)]
    code += [(0x7A, 10, 0, -8, -5), (0x62, 10, 0, -16, 6), (0x6A, 10, 0, -16, 7), (0x72, 10, 0, -16, 8)]
    code += [(0xB7, 5, 0, 0, 3), (0x07, 5, 0, 0, -1), (0x55, 5, 0, -2, 0)]
    code += [(0xB7, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)]
    plain = dump(load(code))
    setting(HARDEN, 2)
    blinded = dump(load(code))
    assert plain is not None and blinded is not None
    assert len(plain) == len(code) * 8 and len(blinded) > 2 * len(plain)
    assert without_zeros(unblind(decode(blinded))) == without_zeros(decode(plain))


def test_withheld_program_is_refused_with_a_remedy(
    group: Group, setting: Callable[[str, int], None]
) -> None:
    setting(HARDEN, 2)
    setting(RESTRICT, 2)
    before = group.attach(load(runc_shape(DOCKER)), bpf.ALLOW_MULTI)
    with pytest.raises(MountError) as caught:
        group.prepare()
    text = str(caught.value)
    assert "the kernel withholds its instructions" in text
    assert "kernel.kptr_restrict" in text and "by CDI" in text
    assert group.attached == (before,)
    setting(RESTRICT, 1)
    group.prepare().apply()
    assert group.attached != (before,)
