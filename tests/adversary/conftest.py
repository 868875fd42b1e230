"""Fixtures of the programs that try to have more than their slice."""

from __future__ import annotations

import os

import pytest
from support import REPO, run
from support.builds import kept
from support.simdriver import WARN, sim_root, simdriver  # noqa: F401
from support.vgpucap import capped, work  # noqa: F401
from support.vgpushim import plain_slice, shims, shims_sanitized, tool, tool_sanitized, vgpu  # noqa: F401
from support.virtual import virtual, world  # noqa: F401


@pytest.fixture(scope="session")
def take_time() -> str:
    """take_time.c as a program."""

    def compile_it(directory: str) -> str:
        program = os.path.join(directory, "take_time")
        sources = [
            os.path.join(REPO, "tests/adversary", name) for name in ("take_time.c", "take_time_more.c")
        ]
        run("gcc", *WARN, "-O2", "-o", program, *sources, "-ldl", "-lpthread", timeout=300)
        return program

    return kept("take_time", compile_it)
