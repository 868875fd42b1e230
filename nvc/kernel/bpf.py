"""Device programs of cgroup v2: bpf(2), as little of it as replacing such a program takes.

Imported by `nvc.apply.cgroup.v2`, and for the tracer. Every function raises OSError; descriptors are close-on-exec.
"""

from __future__ import annotations

import errno
import posix
from _struct import Struct  # `struct` itself costs a container start time

from nvc.base.types import Iterator
from nvc.base.value import Value
from nvc.kernel import address, checked, ffi, lib, strerror

# linux/bpf.h
ALLOW_OVERRIDE = 1
ALLOW_MULTI = 2
REPLACE = 4
_INFO, _LINK_UPDATE, _LINK_OPEN, _LINK_NEXT = 15, 29, 30, 31  # enum bpf_cmd
_LINK = Struct("<IIII")  # descriptor or id, program or next id, flags, old program
_ASK_INFO = Struct("<IIQ")  # descriptor, size and address of the answer
_LINK_INFO = Struct("<I4xI4xQI4x")  # struct bpf_link_info of a cgroup: type, program, cgroup, attach_type
_OF_CGROUP, _DEVICE = 3, 6  # BPF_LINK_TYPE_CGROUP, BPF_CGROUP_DEVICE

_MOST_PROGRAMS = 4096  # the kernel allows 64 for each cgroup of a path
_MOST_BYTES = 65536 * 8
_MOST_LINKS = 65536
_LOG_BYTES = 65536


class BpfProgram(Value):
    """A loaded program. `instructions` is None when the kernel withholds them."""

    id: int
    tag: int  # the kernel's hash of the instructions as they were loaded
    instructions: bytes | None


def command(number: int, structure: bytearray) -> int:
    """bpf(2) with its structure, which the kernel may change: a result, or -errno."""
    return int(lib.nvc_bpf(number, ffi.from_buffer(structure), len(structure)))


def attached(cgroup: int, effective: bool = False) -> tuple[tuple[int, ...], int]:
    """The ids of the device programs attached to a cgroup directory, and their attach flags.

    With `effective`, those of its ancestors too that are asked for this cgroup; the flags are then 0.
    """
    room = 64
    flags = ffi.new("uint32_t *")
    count = ffi.new("uint32_t *")
    while True:
        ids = ffi.new("uint32_t[]", room)
        count[0] = room
        result = lib.nvc_bpf_query(cgroup, effective, ids, count, flags)
        if result != -errno.ENOSPC or room >= _MOST_PROGRAMS:
            checked(result)
            return tuple(ids[0 : count[0]]), flags[0]
        room = _MOST_PROGRAMS


def open_program(program_id: int) -> int:
    """A descriptor of the program; OSError ENOENT when it is gone."""
    return checked(lib.nvc_bpf_program_open(program_id))


def read_program(program: int) -> BpfProgram:
    """What the kernel tells of a program, its translated instructions included (bpf_prog_info)."""
    room = 4096
    while True:
        info = ffi.new("struct nvc_bpf_program *")
        buffer = ffi.new("char[]", room)
        checked(lib.nvc_bpf_program_info(program, info, buffer, room))
        if info.size <= room:
            break
        if info.size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"program {info.id} has {info.size // 8} instructions")
        room = info.size
    instructions = None if info.withheld else bytes(ffi.buffer(buffer, info.size))
    return BpfProgram(info.id, info.tag, instructions)


def identify_program(program: int) -> BpfProgram:
    """The id and the tag of a program, without its instructions."""
    info = ffi.new("struct nvc_bpf_program *")
    checked(lib.nvc_bpf_program_info(program, info, ffi.NULL, 0))
    return BpfProgram(info.id, info.tag, None)


def load(instructions: bytes) -> int:
    """Load a device program and return its descriptor. A refusal quotes the verifier's last words."""
    result = lib.nvc_bpf_program_load(instructions, len(instructions), ffi.NULL, 0)
    if result < 0:
        log = bytearray(_LOG_BYTES)
        again = lib.nvc_bpf_program_load(instructions, len(instructions), ffi.from_buffer(log), len(log))
        if again >= 0:
            return int(again)
        raise refused(result, log)
    return int(result)


def refused(result: int, log: bytearray, name: str = "") -> OSError:
    """The error for a program that was not loaded, with the verifier's last words."""
    text = log.partition(b"\0")[0].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line and not line.startswith("processed ")]
    words = strerror(-result)
    return OSError(-result, f"{words} ({lines[-1]})" if lines else words, *filter(None, (name,)))


def attach(cgroup: int, program: int, flags: int) -> None:
    """Attach with flags 0 or ALLOW_OVERRIDE: the program takes the place of the present one, at once."""
    checked(lib.nvc_bpf_attach(cgroup, program, flags, -1))


def replace(cgroup: int, program: int, old: int) -> None:
    """Put `program` in the place of `old` among several, at once; ENOENT when `old` is not there."""
    checked(lib.nvc_bpf_attach(cgroup, program, ALLOW_MULTI | REPLACE, old))


def links(cgroup_inode: int, program_id: int) -> Iterator[int]:
    """Descriptors, for the caller to close, of the links that hold a device program on a cgroup."""
    position, told = bytearray(_LINK.size), bytearray(_LINK_INFO.size)
    for _ in range(_MOST_LINKS):
        if command(_LINK_NEXT, position) < 0:
            return
        _, link_id, _, _ = _LINK.unpack(position)
        _LINK.pack_into(position, 0, link_id, 0, 0, 0)
        link = command(_LINK_OPEN, bytearray(position))
        if link == -errno.ENOENT:
            continue  # gone in the meantime
        checked(link)
        told[:] = bytes(_LINK_INFO.size)
        result = command(_INFO, bytearray(_ASK_INFO.pack(link, len(told), address(told))))
        if result == 0 and _LINK_INFO.unpack(told) == (_OF_CGROUP, program_id, cgroup_inode, _DEVICE):
            yield link
        else:
            posix.close(link)


def update_link(link: int, program: int, old: int) -> None:
    """Exchange the program of a link at once; EPERM when it no longer holds `old`."""
    checked(command(_LINK_UPDATE, bytearray(_LINK.pack(link, program, REPLACE, old))))
