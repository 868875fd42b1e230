"""native/core/handover under sanitizers, with clients that send what they like."""

from __future__ import annotations

import os

import pytest
from support import REPO, run
from support.builds import kept
from support.simdriver import SANITIZE, WARN

FRAMES = 20000


def compile_tool(directory: str) -> str:
    program = os.path.join(directory, "handover_tool")
    files = ("tests/native/handover_tool.c", "native/core/handover/handover.c")
    run(
        "gcc",
        *WARN,
        "-D_GNU_SOURCE",
        "-O1",
        "-g",
        *SANITIZE,
        "-o",
        program,
        *(os.path.join(REPO, one) for one in files),
    )
    return program


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clients_send_what_they_like(seed: int) -> None:
    done = run(kept("handover_tool", compile_tool), str(FRAMES), str(seed))
    assert FRAMES // 4 < int(done.stdout) < FRAMES
