"""nvidia-ctk, the program under NVIDIA's name, as packages link it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from . import CLEAN_ENV, STAGE, run
from .begun import shared

Ctk = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def nvidia_ctk(launcher: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its path."""
    path = str(tmp_path_factory.mktemp("names") / "nvidia-ctk")
    os.symlink(launcher, path)
    return path


@pytest.fixture
def ctk(nvidia_ctk: str) -> Ctk:
    """`ctk(*words, **variables)` runs nvidia-ctk, with its start if there are variables.

    Whatever it says of a simulated driver is left out.
    """

    def call(*words: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        if variables or words[:1] == ("hook",) or "NVC_STAGE" in os.environ:  # the launcher passes hooks on
            done = run(nvidia_ctk, *words, check=check, env={**CLEAN_ENV, **variables})
        else:
            done = shared(STAGE)(*words, check=check, program="nvidia-ctk")
        lines = done.stderr.splitlines(keepends=True)
        done.stderr = "".join(line for line in lines if "these GPUs are not real" not in line)
        return done

    return call


def refused(done: subprocess.CompletedProcess[str], words: str, code: int = 1) -> None:
    """One line that says why."""
    assert done.returncode == code and done.stdout == ""
    assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr
