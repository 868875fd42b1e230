"""A loaded device program extended by our devices: its union with them, loaded but attached nowhere.

The union is the program itself, as the kernel dumps it, behind the block that allows our devices: exact
whoever made it.
"""

from __future__ import annotations

import errno

from nvc.apply.cgroup.program import (
    Instruction,
    Rule,
    allow_block,
    decode,
    encode,
    names_hidden_register,
    reloadable,
)
from nvc.kernel import bpf

_BY_CDI = "give the devices by CDI"
_HINT = (
    "let the kernel show it (kernel.kptr_restrict below 2 and CAP_SYSLOG), "
    f"or start the container with net.core.bpf_jit_harden at 0, or {_BY_CDI}"
)
#: Errors of BPF_PROG_LOAD that judge the program, not the caller.
_VERDICTS = (errno.EINVAL, errno.EACCES, errno.E2BIG, errno.EOPNOTSUPP, errno.EFAULT)


class Unreadable(Exception):
    """Why a program cannot be extended, and what to do about it."""

    def __init__(self, cause: str, hint: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint


def readable(program: bpf.BpfProgram) -> list[Instruction]:
    """The instructions of a program as it may be loaded again; raises Unreadable."""
    raw = program.instructions
    if raw is None or len(raw) % 8:
        raise Unreadable("the kernel withholds its instructions", _HINT)
    code: list[Instruction] | None = decode(raw)
    if code and names_hidden_register(raw):
        from nvc.apply.cgroup.blinding import unblind

        code = unblind(code)
        if code is None:
            raise Unreadable("its constants are hidden (net.core.bpf_jit_harden) in an unknown way", _HINT)
    if not code or not reloadable(code):
        raise Unreadable("it uses calls, maps or instructions that a dump does not preserve", _BY_CDI)
    return code


def extend(code: list[Instruction], rules: tuple[Rule, ...]) -> int:
    """A descriptor of a new program that allows `rules`, and what the program of these instructions does.

    Raises Unreadable, and OSError where this process may not load programs at all.
    """
    try:
        return bpf.load(encode(allow_block(rules) + code))
    except OSError as error:
        if error.errno not in _VERDICTS:
            raise
        raise Unreadable(f"the kernel refuses to load it again: {error.strerror}", _BY_CDI) from None
