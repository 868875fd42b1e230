"""Programs that load libcuda in odd ways: by the driver's count they have no more than their limit."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support import GIB, MIB, run
from support.builds import kept
from support.dialog import Dialog
from support.simdriver import SOURCES, WARN
from support.vgpushim import OUT_OF_MEMORY, Slice


def compile_odd(directory: str) -> str:
    """tests/native/vgpu_odd.c as a program."""
    program = os.path.join(directory, "vgpu_odd")
    run("gcc", *WARN, "-O1", "-o", program, os.path.join(SOURCES, "vgpu_odd.c"), "-ldl")
    return program


#: How, and whether it gets memory at all: a shim that does not know where it lies finds no quota.
CASES = {"namespaces": True, "memory": False, "moved": False, "shared": True}


@pytest.mark.parametrize(("how", "gets"), CASES.items())
def test_the_limit_holds(plain_slice: Callable[..., Slice], how: str, gets: bool) -> None:
    slice_ = plain_slice(gpus=1)
    words = ("env", "-C", slice_.libraries, kept("vgpu_odd", compile_odd), how, slice_.path("libcuda.so.1"))
    program = Dialog(words, slice_.environment())
    (said,) = program.receive()
    assert bool(int(said)) == gets
    # A context and what is left when no piece of 64 MiB fits any more.
    assert slice_.taken() <= 2 * GIB and (slice_.taken() > 2 * GIB - slice_.context - 64 * MIB) == gets
    if gets:
        other = slice_.process().do("init")
        assert other.code("primary 0") == OUT_OF_MEMORY and other.code("alloc a 64m") != 0
    assert slice_.taken() <= 2 * GIB
    program.end()
