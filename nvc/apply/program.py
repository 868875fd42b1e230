"""A plan as the applier's program: every source is open and checked, every path of the host is gone.

The layout is that of `struct nvc_op_header` in native/core/apply/apply.h.
"""

from __future__ import annotations

from _struct import Struct, pack

from nvc.apply.sources import Sources
from nvc.kernel import lib
from nvc.plan import ops

_HEADER = Struct("<IIiIQII")

#: The flags word of loader-cache entries (glibc dl-cache.h): libc6 ELF, and the machine in the second byte.
LOADER_FLAGS = {"x86_64": 0x0303, "i386": 0x0003, "aarch64": 0x0A03, "arm": 0x0903}


class Program:
    """Operations in order, packed; `ops` names the plan's operation of each, for messages."""

    __slots__ = ("parts", "ops", "binds")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.ops: list[ops.Op | None] = []
        self.binds: dict[str, int] = {}  # target -> index

    def add(
        self, op: ops.Op | None, kind: int, target: str, first: bytes = b"", *, fd: int = -1, flags: int = 0,
        operand: int = 0, attributes: int = 0,
    ) -> None:  # fmt: skip
        """Append one operation."""
        path = _bytes(target)
        self.parts.append(_HEADER.pack(kind, flags, fd, operand, attributes, len(path), len(first)))
        self.parts += (path, b"\0", first, b"\0")
        self.ops.append(op)

    def bind(self, op: ops.Bind, fd: int, directory: bool = False, inside: bool = False) -> None:
        """Append a bind of the open source `fd`."""
        self.binds[op.target] = len(self.ops)
        flags = (lib.NVC_BIND_DIRECTORY if directory else 0) | (lib.NVC_BIND_INSIDE if inside else 0)
        self.add(op, lib.NVC_OP_BIND, op.target, fd=fd, flags=flags, attributes=op.attributes)

    def packed(self) -> bytes:
        """The whole program."""
        return b"".join(self.parts)


def build_program(plan: ops.Plan, sources: Sources, interrupted: bytes) -> Program:
    """The program for `plan`, its sources opened and verified. Raises what `Sources` raises."""
    program = Program()
    if interrupted:
        program.add(None, lib.NVC_OP_UNDO, "", interrupted)
    for op in plan.ops:
        if isinstance(op, ops.BindFile):
            program.bind(op, sources.file(op))
        elif isinstance(op, ops.BindHostFile):
            program.bind(op, sources.host_file(op), op.is_directory)
        elif isinstance(op, ops.BindInside):
            program.bind(op, sources.inside(op), inside=True)
        elif isinstance(op, ops.BindSocket):
            fd = sources.socket(op)
            if fd >= 0:
                program.bind(op, fd, op.is_directory)
        elif isinstance(op, ops.BindProc):
            program.bind(op, sources.proc(op), op.is_directory)
        elif isinstance(op, ops.BindDevice):
            program.bind(op, sources.device(op))
        elif isinstance(op, ops.BindDeviceDirectory):
            program.bind(op, sources.device_directory(op), directory=True)
        elif isinstance(op, ops.Tmpfs):
            _tmpfs(program, op)
        elif isinstance(op, ops.Ledger):
            label = op.label.encode()
            program.add(
                op, lib.NVC_OP_LEDGER, op.target, label + op.content, flags=len(label), operand=op.size,
                attributes=op.attributes,
            )  # fmt: skip
        elif isinstance(op, ops.Symlink):
            bind = program.binds.get(op.fallback, -1)
            program.add(op, lib.NVC_OP_SYMLINK, op.target, _bytes(op.text), operand=bind + 1)
        elif isinstance(op, ops.UpdateLoaderCache):
            if op.entries:
                program.add(op, lib.NVC_OP_LDCACHE, "/etc/ld.so.cache", _entries(op))
        elif isinstance(op, ops.AllowDevice):
            pass  # rules are no part of the program: they are there before it runs
        else:
            ops.assert_never(op)
    return program


def repair_program(records: bytes) -> bytes:
    """A program that only undoes the records of a journal."""
    program = Program()
    program.add(None, lib.NVC_OP_UNDO, "", records)
    return program.packed()


def _tmpfs(program: Program, op: ops.Tmpfs) -> None:
    program.add(op, lib.NVC_OP_TMPFS, op.target)
    for directory in op.directories:
        program.add(op, lib.NVC_OP_TMPFS_DIR, directory)
    for name, content in op.files:
        program.add(op, lib.NVC_OP_TMPFS_FILE, name, content)
    program.add(op, lib.NVC_OP_ATTACH, op.target, attributes=op.attributes)


def _entries(op: ops.UpdateLoaderCache) -> bytes:
    packed = []
    for entry in op.entries:
        packed.append(pack("<I", LOADER_FLAGS[entry.arch]))
        packed += (_bytes(entry.soname), b"\0", _bytes(entry.path), b"\0")
    return b"".join(packed)


def _bytes(text: str) -> bytes:
    """A path as the kernel has it, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")
