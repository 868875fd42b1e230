"""A bundle's `linux.resources.devices` as a device program, for when the attached one cannot be read.

For each of read, write and mknod the last rule that matches decides, and without one the answer is no. The
runtimes add devices of their own to the list, so a program made of the list alone would take them away.
"""

from __future__ import annotations

from nvc.apply.cgroup.program import (
    AND32_K,
    BLOCK,
    CHAR,
    JEQ_K,
    JNE_K,
    JSET_K,
    LDX_W,
    MKNOD,
    MOV32_X,
    READ,
    RSH32_K,
    WRITE,
    Assembler,
    Instruction,
    Rule,
)
from nvc.base.value import Value

_TYPES = {"a": 0, "b": BLOCK, "c": CHAR, "u": CHAR}
_LETTERS = {"r": READ, "w": WRITE, "m": MKNOD}
_MOST_RULES = 2048


class DeviceRule(Value):
    """One rule. -1 stands for every number, `type` 0 for both."""

    allow: bool
    type: int  # of bpf_cgroup_dev_ctx: 1 block, 2 char
    major: int
    minor: int
    access: int  # READ | WRITE | MKNOD


_ALL = READ | WRITE | MKNOD
#: What runc, crun and youki allow whatever the bundle says: the OCI specification's default devices, and
# mknod.
RUNTIME_RULES = (
    DeviceRule(True, CHAR, -1, -1, MKNOD),
    DeviceRule(True, BLOCK, -1, -1, MKNOD),
    *(
        DeviceRule(True, CHAR, major, minor, _ALL)
        for major, minor in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2), (136, -1))
    ),
)


def parse(devices: object) -> tuple[DeviceRule, ...]:
    """The rules of a parsed `linux.resources.devices`; ValueError for anything that is not such a list.

    As in runc, an absent type is every type, absent access is all access, absent or negative numbers are
    all.
    """
    if not isinstance(devices, (list, tuple)) or len(devices) > _MOST_RULES:
        raise ValueError("linux.resources.devices is not a list of device rules")
    rules = []
    for entry in devices:
        if not isinstance(entry, dict) or not isinstance(entry.get("allow", False), bool):
            raise ValueError("a rule of linux.resources.devices is malformed")
        letters = entry.get("access") or "rwm"
        name = entry.get("type") or "a"
        kind = _TYPES.get(name) if isinstance(name, str) else None
        if kind is None or not isinstance(letters, str) or not set(letters) <= set(_LETTERS):
            raise ValueError("a rule of linux.resources.devices has an unknown type or access")
        access = 0
        for letter in letters:
            access |= _LETTERS[letter]
        rules.append(
            DeviceRule(
                entry.get("allow", False), kind, _number(entry, "major"), _number(entry, "minor"), access
            )
        )
    return tuple(rules)


def _number(entry: dict[str, object], name: str) -> int:
    value = entry.get(name)
    if value is None:
        return -1
    if type(value) is not int or value >= 1 << 31:
        raise ValueError(f"a rule of linux.resources.devices has no usable {name}")
    return max(value, -1)


def decide(rules: tuple[DeviceRule, ...], kind: int, access: int, major: int, minor: int) -> bool:
    """Whether `rules` allow `access` (a mask) to a device: what a program made of them must answer."""
    for rule in reversed(rules):
        if rule.type in (0, kind) and rule.major in (-1, major) and rule.minor in (-1, minor):
            if rule.allow:
                access &= ~rule.access
                if not access:
                    return True
            elif access & rule.access:
                return False
    return not access


def allow_all(rules: tuple[DeviceRule, ...], wanted: tuple[Rule, ...]) -> bool:
    """Whether reading and writing every character device of `wanted` is allowed."""
    return all(decide(rules, CHAR, READ | WRITE, major, minor) for major, minor in wanted)


def generate(rules: tuple[DeviceRule, ...]) -> list[Instruction]:
    """A whole device program that answers as `decide` does. R3 holds the access that is still undecided."""
    program = Assembler()
    program.emit(LDX_W, 2, 1)
    program.emit(MOV32_X, 3, 2)
    program.emit(AND32_K, 2, imm=0xFFFF)
    program.emit(RSH32_K, 3, imm=16)
    program.emit(LDX_W, 4, 1, 4)
    program.emit(LDX_W, 5, 1, 8)
    for index, rule in enumerate(reversed(rules)):
        after = f"rule {index}"
        if rule.type:
            program.jump(JNE_K, after, 2, rule.type)
        if rule.major >= 0:
            program.jump(JNE_K, after, 4, rule.major)
        if rule.minor >= 0:
            program.jump(JNE_K, after, 5, rule.minor)
        if rule.allow:
            program.emit(AND32_K, 3, imm=~rule.access)
            program.jump(JEQ_K, "allow", 3, 0)
        else:
            program.jump(JSET_K, "deny", 3, rule.access)
        program.place(after)
    program.jump(JEQ_K, "allow", 3, 0)
    program.place("deny")
    program.verdict(False)
    program.place("allow")
    program.verdict(True)
    return program.finish()
