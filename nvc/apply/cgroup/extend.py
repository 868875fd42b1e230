"""A loaded device program extended by our devices: its union with them, loaded but attached nowhere.

The union is the program itself, as the kernel dumps it, behind the block that allows our devices: exact
whoever made it. Only where a dump cannot be had or does not load again is a program made from the bundle's
rules instead. That one knows what the runtime was told, not what else stands in the attached program, so it
never replaces one of several.
"""

from __future__ import annotations

import errno
import posix as os  # importing `os` itself costs a container start 0.8 ms

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

_NAME_NODES = "list the nodes in the bundle's linux.resources.devices (as CDI does)"
_HINT = (
    "let the kernel show it (kernel.kptr_restrict below 2 and CAP_SYSLOG), "
    f"or start the container with net.core.bpf_jit_harden at 0, or {_NAME_NODES}"
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
        raise Unreadable("it uses calls, maps or instructions that a dump does not preserve", _NAME_NODES)
    return code


def extend(
    program: bpf.BpfProgram, code: list[Instruction] | Unreadable, rules: tuple[Rule, ...], oci_devices: object
) -> int:
    """A descriptor of a new program that allows `rules` and what `program` does; -1: leave it alone.

    `code` is what `readable` gave or raised. `oci_devices` is None where the bundle may not stand in. Raises
    Unreadable, and OSError where this process may not load programs at all.
    """
    problem: Unreadable
    if isinstance(code, Unreadable):
        problem = code
    else:
        try:
            return bpf.load(encode(allow_block(rules) + code))
        except OSError as error:
            if error.errno not in _VERDICTS:
                raise
            problem = Unreadable(f"the kernel refuses to load it again: {error.strerror}", _NAME_NODES)
    if oci_devices is None:
        raise problem
    return _from_bundle(program, rules, oci_devices, problem)


def _from_bundle(
    program: bpf.BpfProgram, rules: tuple[Rule, ...], oci_devices: object, problem: Unreadable
) -> int:
    from nvc.apply.cgroup.rules import RUNTIME_RULES, allow_all, generate, parse

    try:
        listed = parse(oci_devices) + RUNTIME_RULES
    except ValueError as error:
        raise Unreadable(f"{problem.cause}, and {error}", problem.hint) from None
    if allow_all(listed, rules):
        return -1
    new = bpf.load(encode(allow_block(rules) + generate(listed)))
    # A second run makes the same program again; the kernel's hash of what was loaded tells.
    if bpf.identify_program(new).tag == program.tag:
        os.close(new)
        return -1
    return new
