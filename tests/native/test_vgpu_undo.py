"""What the shim does where the driver does not take back what it gave."""

from __future__ import annotations

import os

from support import REPO, need, run
from support.builds import kept
from support.simdriver import SANITIZE, WARN
from support.vgpushim import INCLUDES

FILES = ("tests/native/vgpu_undo.c", "native/vgpu/memory/vmm.c", "native/vgpu/charge/items.c")


def build(directory: str) -> str:
    program = f"{directory}/vgpu_undo"
    files = [os.path.join(REPO, file) for file in FILES]
    run(need("gcc"), *WARN, "-O1", "-g", *SANITIZE, *INCLUDES, "-o", program, *files)
    return program


def test_what_stays_mapped_stays_charged() -> None:
    """Over functions in the driver's place, under sanitizers: no driver fails here at will."""
    run(kept("vgpu_undo", build))
