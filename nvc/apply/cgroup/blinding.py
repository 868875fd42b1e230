"""Constants out of a dump that was made under JIT hardening (net.core.bpf_jit_harden).

The kernel then rewrites `op dst, imm` as three instructions (kernel/bpf/core.c, bpf_jit_blind_insn), with
R11, which no program may name, and a random number that differs each time:

    mov r11, imm ^ random
    xor r11, random
    op  dst, r11

Such a dump is refused when it is loaded. Here each group becomes the one instruction that it came from.
"""

from __future__ import annotations

from nvc.apply.cgroup.program import Instruction

_HIDDEN = 11  # BPF_REG_AX
_CLASS = 7
_X = 8
_ALU32, _ALU64, _JMP, _JMP32, _STX = 4, 7, 5, 6, 3


def unblind(code: list[Instruction]) -> list[Instruction] | None:
    """The program before it was blinded, None where a group is not as expected."""
    plain: list[Instruction] = []
    origins: list[int] = []  # of each plain instruction: where its jump is counted from
    places: dict[int, int] = {}  # where a jump may arrive: old index -> new index
    position = 0
    while position < len(code):
        places[position] = len(plain)
        op, dst, src, off, imm = code[position]
        if dst == _HIDDEN:
            group = _wide(code, position) or _single(code, position)
            if group is None:
                return None
            used, instructions = group
        elif src == _HIDDEN:
            return None
        elif op == 0xAF and dst == src:
            # `mov dst, 0` is blinded as `xor dst, dst`, which the verifier refuses on an unset register.
            used, instructions = 1, [(0xB7, dst, 0, 0, 0)]
        elif op == 0x18:
            used, instructions = 2, code[position : position + 2]
            if len(instructions) < 2 or instructions[1][:4] != (0, 0, 0, 0):
                return None
        else:
            used, instructions = 1, [(op, dst, src, off, imm)]
        position += used
        plain += instructions
        origins += [position - 1] * len(instructions)
    return _retarget(plain, origins, places)


def _constant(code: list[Instruction], position: int) -> tuple[int, int] | None:
    """(class, constant) of a `mov r11; xor r11` pair at `position`."""
    if position + 2 >= len(code):
        return None
    first, second = code[position], code[position + 1]
    kind = first[0] & _CLASS
    if kind not in (_ALU32, _ALU64) or first[:4] != (0xB0 | kind, _HIDDEN, 0, 0):
        return None
    if second[:4] != (0xA0 | kind, _HIDDEN, 0, 0):
        return None
    return kind, first[4] ^ second[4]


def _single(code: list[Instruction], position: int) -> tuple[int, list[Instruction]] | None:
    found = _constant(code, position)
    if found is None:
        return None
    width, imm = found
    op, dst, src, off, _ = code[position + 2]
    if src != _HIDDEN or dst == _HIDDEN:
        return None
    kind = op & _CLASS
    if kind == _STX and op & 0xE0 == 0x60 and width == _ALU64:
        return 3, [(op & ~1, dst, 0, off, imm)]  # BPF_ST has the code below BPF_STX
    if op & _X and kind in ((_ALU64, _JMP) if width == _ALU64 else (_ALU32, _JMP32)):
        return 3, [(op & ~_X, dst, 0, off, imm)]
    return None


def _wide(code: list[Instruction], position: int) -> tuple[int, list[Instruction]] | None:
    """A 64-bit constant: its upper half, `lsh r11, 32`, `mov dst, r11`, its lower half, `or dst, r11`."""
    upper = _constant(code, position)
    lower = _constant(code, position + 4)
    if upper is None or lower is None or upper[0] != _ALU64 or lower[0] != _ALU32:
        return None
    dst = code[position + 3][1]
    if code[position + 2] != (0x67, _HIDDEN, 0, 0, 32) or dst == _HIDDEN:
        return None
    if code[position + 3] != (0xBF, dst, _HIDDEN, 0, 0) or code[position + 6] != (0x4F, dst, _HIDDEN, 0, 0):
        return None
    return 7, [(0x18, dst, 0, 0, lower[1]), (0, 0, 0, 0, upper[1])]


def _retarget(
    plain: list[Instruction], origins: list[int], places: dict[int, int]
) -> list[Instruction] | None:
    for index, (op, dst, src, off, imm) in enumerate(plain):
        if op & _CLASS not in (_JMP, _JMP32) or op == 0x95:
            continue
        long = op == 0x06  # the one jump whose distance is its immediate
        target = places.get(origins[index] + 1 + (imm if long else off))
        if target is None:
            return None
        distance = target - index - 1
        plain[index] = (op, dst, src, 0, distance) if long else (op, dst, src, distance, imm)
    return plain
