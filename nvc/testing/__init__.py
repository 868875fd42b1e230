"""Fakes that ship with the package: a kernel that records instead of changing anything."""

from __future__ import annotations

import struct

from nvc.base.value import Value
from nvc.kernel import ApplyReport, ApplyTarget, LinuxKernel

_HEADER = struct.Struct("<IIiIQII")
_KINDS = {
    1: "bind",
    2: "tmpfs",
    3: "directory",
    4: "file",
    5: "attach",
    6: "symlink",
    7: "ldcache",
    8: "undo",
    9: "ledger",
}


class Operation(Value):
    """One operation of the applier's program, decoded."""

    kind: str
    target: str
    first: bytes
    flags: int
    fd: int
    operand: int
    attributes: int


def decode_program(program: bytes) -> tuple[Operation, ...]:
    """The operations of a packed program, as native/core/apply/apply.c reads it.

    Raises struct.error if cut short.
    """
    operations = []
    at = 0
    while at < len(program):
        kind, flags, fd, operand, attributes, target_length, first_length = _HEADER.unpack_from(program, at)
        at += _HEADER.size
        target = program[at : at + target_length].decode()
        at += target_length + 1
        first = program[at : at + first_length]
        at += first_length + 1
        operations.append(Operation(_KINDS[kind], target, first, flags, fd, operand, attributes))
    return tuple(operations)


class RecordingKernel(LinuxKernel):
    """Opens for real, below the roots it is given, but applies nothing: `programs` has what it was asked to.

    `answers` are reports for the next calls of `apply`; without one left, success is reported. An answer that
    is an OSError is raised.
    """

    def __init__(self, *answers: ApplyReport | OSError) -> None:
        self.programs: list[tuple[Operation, ...]] = []
        self.places: list[ApplyTarget] = []
        self.capabilities: list[tuple[int, int, int]] = []
        self.bounding: list[int] = []
        self.answers = list(answers)

    def apply(self, program: bytes, place: ApplyTarget) -> ApplyReport:
        """Record the program and give the next answer."""
        self.programs.append(decode_program(program))
        self.places.append(place)
        answer = self.answers.pop(0) if self.answers else ApplyReport(0, -1, 1, 0, "", "", ())
        if isinstance(answer, OSError):
            raise answer
        return answer

    def capset(self, effective: int, permitted: int, inheritable: int) -> None:
        """Record the sets."""
        self.capabilities.append((effective, permitted, inheritable))

    def capbset_keep(self, bounding: int) -> None:
        """Record the mask."""
        self.bounding.append(bounding)


__all__ = ["Operation", "RecordingKernel", "decode_program"]
