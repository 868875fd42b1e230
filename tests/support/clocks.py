"""Clocks that are wrong, for programs of tests: tests/native/jumping_clock.c."""

from __future__ import annotations

import os

from . import need, run
from .simdriver import SOURCES, WARN


def jumping(directory: str, how: str) -> dict[str, str]:
    """The variables with which a program's clocks jump: `wall`, `forward`, `back` or `fast`."""
    library = os.path.join(directory, "jumping_clock.so")
    if not os.path.exists(library):
        source = os.path.join(SOURCES, "jumping_clock.c")
        run(need("gcc"), *WARN, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl")
    return {"LD_PRELOAD": library, "JUMP": how}
