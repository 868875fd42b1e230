"""What the shim does where the driver does not take back what it gave."""

from __future__ import annotations

import os

from support import REPO, need, run
from support.simdriver import SANITIZE, WARN

FILES = ("tests/native/vgpu_undo.c", "native/vgpu/memory/vmm.c", "native/vgpu/charge/items.c")


def test_what_stays_mapped_stays_charged(scratch: str) -> None:
    """Over functions in the driver's place, under sanitizers: no driver fails here at will."""
    program = f"{scratch}/vgpu_undo"
    files = [os.path.join(REPO, file) for file in FILES]
    include = f"-I{os.path.join(REPO, 'native/vgpu')}"
    run(need("gcc"), *WARN, "-O1", "-g", *SANITIZE, include, "-o", program, *files)
    run(program)
