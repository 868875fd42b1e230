"""What a device program answers: an interpreter for the eBPF that such programs are made of.

It knows arithmetic, jumps and reading the context, which is all that runc, crun, systemd and LXC generate.
At anything else (calls, maps, the stack) it gives up, and the program counts as one that denies.
"""

from __future__ import annotations

from _operator import add, and_, eq, floordiv, ge, gt, le, lshift, lt, mod, mul, ne, or_, rshift, sub, xor

from nvc.apply.cgroup.program import Instruction, Rule

#: Instructions that one question may take, over all rules; a device program has no loops.
MOST_STEPS = 60_000
# Every way to open a character device that rw stands for: O_RDWR, O_RDONLY, O_WRONLY, in the first word's
# form.
_OPENINGS = (6 << 16 | 2, 2 << 16 | 2, 4 << 16 | 2)
_CONTEXT = "context"
_WIDTHS = {0x61: 4, 0x69: 2, 0x71: 1}
_JUMPS = {0x10: eq, 0x20: gt, 0x30: ge, 0x40: and_, 0x50: ne, 0xA0: lt, 0xB0: le}
_JUMPS_SIGNED = {0x60: gt, 0x70: ge, 0xC0: lt, 0xD0: le}
_ARITHMETIC = {
    0x00: add, 0x10: sub, 0x20: mul, 0x30: floordiv, 0x40: or_, 0x50: and_, 0x60: lshift, 0x70: rshift,
    0x90: mod, 0xA0: xor, 0xC0: rshift,
}  # fmt: skip
_M32 = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF


def allows(code: list[Instruction], rules: tuple[Rule, ...]) -> bool:
    """Whether a program surely allows to read and write every character device of `rules`."""
    steps = MOST_STEPS
    for major, minor in rules:
        for opening in _OPENINGS:
            answer, used = answer_to(code, opening, major, minor, steps)
            if answer != 1:
                return False
            steps -= used
    return True


def verdict(code: list[Instruction], rule: Rule) -> bool | None:
    """Whether a program allows to read and write a character device; None where that cannot be told."""
    answers = [answer_to(code, opening, *rule)[0] for opening in _OPENINGS]
    if any(answer is not None and answer != 1 for answer in answers):
        return False
    return None if None in answers else True


def answer_to(
    code: list[Instruction], access_type: int, major: int, minor: int, steps: int = MOST_STEPS
) -> tuple[int | None, int]:
    """R0 at the end of a program, and how many instructions that took; None where it cannot be told.

    `access_type` is `access << 16 | type`, as in `struct bpf_cgroup_dev_ctx`.
    """
    context = access_type | major << 32 | minor << 64
    regs: list[int | str | None] = [None] * 11
    regs[1] = _CONTEXT
    pc = 0
    left = steps
    size = len(code)
    try:
        while left and 0 <= pc < size:
            left -= 1
            op, dst, src, off, imm = code[pc]
            pc += 1
            if op == 0x55:  # jne, the commonest by far
                value = regs[dst]
                if value.__class__ is not int:
                    return None, steps - left
                if value != imm & _M64:
                    pc += off
                continue
            kind = op & 7
            if kind == 5 or kind == 6:
                if op == 0x95:
                    result = regs[0]
                    return (result & _M32 if isinstance(result, int) else None), steps - left
                if op == 0x05:
                    pc += off
                elif op == 0x06:
                    pc += imm
                elif _taken(op, regs[dst], regs[src] if op & 8 else imm & _M64):  # type: ignore[arg-type]
                    pc += off
            elif kind == 4 or kind == 7:
                operand = regs[src] if op & 8 else imm & _M64
                if op & 0xF0 == 0xB0 and kind == 7 and off == 0:
                    if operand is None:
                        return None, steps - left
                    regs[dst] = operand  # the context may be copied, never computed with
                elif off:
                    return None, steps - left
                else:
                    regs[dst] = _computed(op, regs[dst], operand)  # type: ignore[arg-type]
            elif kind == 1:
                width = _WIDTHS.get(op, 0)
                if not width or regs[src] != _CONTEXT or not 0 <= off <= 12 - width:
                    return None, steps - left
                regs[dst] = context >> (off * 8) & ((1 << width * 8) - 1)
            elif op == 0x18 and src == 0 and pc < size:
                regs[dst] = imm & _M32 | (code[pc][4] & _M32) << 32
                pc += 1
            else:
                return None, steps - left
    except (TypeError, IndexError, KeyError):  # the context or nothing as an operand, an unknown operation
        pass
    return None, steps - left


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _taken(op: int, left: int, right: int) -> bool:
    """Whether a conditional jump is taken; TypeError for operands that are no numbers, KeyError for other codes."""
    bits, mask = (32, _M32) if op & 7 == 6 else (64, _M64)
    left, right, kind = left & mask, right & mask, op & 0xF0
    if kind in _JUMPS_SIGNED:
        return _JUMPS_SIGNED[kind](_signed(left, bits), _signed(right, bits))
    return bool(_JUMPS[kind](left, right))


def _computed(op: int, left: int, right: int) -> int:
    """The value of an arithmetic instruction; TypeError and KeyError as in `_taken`."""
    bits, mask = (64, _M64) if op & 7 == 7 else (32, _M32)
    kind = op & 0xF0
    right &= mask
    if kind == 0xB0:
        return right
    left &= mask
    if kind in (0x60, 0x70, 0xC0):
        right &= bits - 1
    if kind == 0xC0:
        left = _signed(left, bits)
    if kind in (0x30, 0x90) and not right:  # by zero: eBPF defines both
        return 0 if kind == 0x30 else left
    if op in (0x84, 0x87):
        return -left & mask
    return int(_ARITHMETIC[kind](left, right)) & mask
