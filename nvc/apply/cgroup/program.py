"""eBPF instructions of device programs: packing, and the block that allows our nodes.

A device program gets `struct bpf_cgroup_dev_ctx` (linux/bpf.h) in R1: three words, `access << 16 | type`,
major and minor. It returns 1 to allow. Nothing in it is rewritten when it is loaded, so a dump is the
program itself except for dead code, which the verifier drops, and for constants under JIT hardening (see
`blinding`).
"""

from __future__ import annotations

from _struct import Struct

#: code, destination register, source register, offset, immediate
Instruction = tuple[int, int, int, int, int]
#: major, minor of a character device
Rule = tuple[int, int]

CHAR = 2
READ = 2
WRITE = 4

# Codes of linux/bpf_common.h and linux/bpf.h, composed.
LDX_W = 0x61
AND32_K = 0x54
MOV64_K = 0xB7
JGT_K = 0x25
JNE_K = 0x55
JLT_K = 0xA5
EXIT = 0x95

_MOST_RULES = 4096  # keeps every jump within its 16 bits
# Instructions are bit fields in C: on the little-endian machines that are supported, destination comes
# first.
_LAYOUT = Struct("<BBhi")


def decode(raw: bytes) -> list[Instruction]:
    """Instructions out of their binary form; `raw` is a whole number of them."""
    return [(code, regs & 15, regs >> 4, off, imm) for code, regs, off, imm in _LAYOUT.iter_unpack(raw)]


def encode(code: list[Instruction]) -> bytes:
    """The binary form that bpf(2) takes."""
    pack = _LAYOUT.pack
    return b"".join([pack(op, src << 4 | dst, off, imm) for op, dst, src, off, imm in code])


def names_hidden_register(raw: bytes) -> bool:
    """Whether instructions use R11, with which the kernel alone hides constants (see `blinding`)."""
    return any(regs & 15 == 11 or regs >> 4 == 11 for regs in set(raw[1::8]))


def allow_block(rules: tuple[Rule, ...]) -> list[Instruction]:
    """Instructions that return 1 for reading and writing the character devices `rules`, else go on behind.

    R1 is left as it was, R2 to R4 are used: what follows was verified without relying on any but R1.
    """
    if len(rules) > _MOST_RULES:
        raise ValueError(f"{len(rules)} device rules, at most {_MOST_RULES}")
    block: list[Instruction] = []
    for major in sorted({major for major, _ in rules}):
        for first, final in _runs(sorted({minor for other, minor in rules if other == major})):
            block += [
                (JNE_K, 3, 0, 4, major), (JLT_K, 4, 0, 3, first), (JGT_K, 4, 0, 2, final),
                (MOV64_K, 0, 0, 0, 1), (EXIT, 0, 0, 0, 0),
            ]  # fmt: skip
    access = [
        (LDX_W, 2, 1, 0, 0),
        (AND32_K, 2, 0, 0, ~((READ | WRITE) << 16)),
        (JNE_K, 2, 0, len(block) + 2, CHAR),
    ]
    return [*access, (LDX_W, 3, 1, 4, 0), (LDX_W, 4, 1, 8, 0), *block] if rules else []


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Sorted numbers as ranges (first, last)."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def reloadable(code: list[Instruction]) -> bool:
    """Whether a dump means the same when it is loaded again.

    Calls and map addresses do not: a dump has the kernel's own numbers in their place, and a map's id could
    pass for one of our descriptors. Whatever this does not know is refused too.
    """
    position = 0
    while position < len(code):
        op, dst, src, off, _ = code[position]
        kind = op & 7
        if dst > 10 or src > 10:
            return False
        if kind == 0:  # of the loads, a plain 64-bit constant in two slots
            if op != 0x18 or src or position + 1 == len(code) or code[position + 1][:4] != (0, 0, 0, 0):
                return False
            position += 1
        elif kind in (1, 2, 3):
            if op & 0xE0 != 0x60:  # not a plain memory access
                return False
        elif kind in (4, 7):
            # Moves with other offsets stand for per-CPU and arena addresses, which only the kernel writes.
            if op & 0xF0 > 0xD0 or (op & 0xF0 == 0xB0 and off not in (0, 8, 16, 32)):
                return False
        elif op & 0xF0 > 0xD0 or (op & 0xF0 == 0x80) or (op & 0xF0 == 0x90 and op != EXIT):
            return False
        position += 1
    return position == len(code) > 0
