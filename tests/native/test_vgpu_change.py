"""Parts of the shim over functions of the tests' own, in the driver's place and the system's, under sanitizers."""

from __future__ import annotations

import os

from support import REPO, need, run
from support.simdriver import SANITIZE, WARN


def run_over(scratch: str, name: str, files: tuple[str, ...], *flags: str) -> None:
    """Run a program of tests/native that is linked with some files of the shim."""
    program = os.path.join(scratch, name)
    shim = os.path.join(REPO, "native/vgpu")
    sources = [os.path.join(REPO, "tests/native", f"{name}.c"), *(os.path.join(shim, file) for file in files)]
    run(need("gcc"), *WARN, "-O1", "-g", *SANITIZE, f"-I{shim}", *flags, "-o", program, *sources)
    run(program)


def test_the_driver_gets_the_lists_that_were_looked_at(scratch: str) -> None:
    """They become others in the program's memory while the shim looks at them."""
    run_over(scratch, "vgpu_change", ("launch.c", "refused.c"))


def test_a_turn_of_no_memory_wakes_nobody(scratch: str) -> None:
    run_over(scratch, "vgpu_turn", ("process.c",), "-Wl,--wrap=mmap,--wrap=syscall")


def test_own_events_leave_their_places(scratch: str) -> None:
    run_over(scratch, "vgpu_own_events", ("own_events.c",))
