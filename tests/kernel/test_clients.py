"""Calls as programs make them that know nvidia-container-cli: enroot, LXC, soperator, Charliecloud, Apptainer."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support import run

CALL = ("configure", "--no-cgroups", "--device=all", "--compute", "--utility")


class Standalone:
    """nvidia-container-cli without --pid, in a mount namespace of its own on a root file system."""

    def __init__(self, launcher: str, driver: str, rootfs: str) -> None:
        self.words = (launcher, f"--root={driver}")
        self.rootfs = rootfs

    def __call__(self, *words: str, then: str = "", before: str = "", **options: Any) -> Any:
        """Configure, then run a shell script in which $1 is the root file system."""
        script = f'{before or ":"}; R=$1; shift; "$@" "$R" && {{ set -- "$R"; {then or ":"}; }}'
        call = (*self.words, *CALL, *words)
        return run("unshare", "--mount", "sh", "-c", script, "sh", self.rootfs, *call, **options)


@pytest.fixture
def standalone(launcher: str, driver: str, debian: str) -> Standalone:
    return Standalone(launcher, driver, debian)


def test_a_caller_can_keep_the_loader_cache(standalone: Standalone) -> None:
    """With --ldconfig=/usr/bin/true, as soperator does for a root file system that hosts share."""
    cache = f"{standalone.rootfs}/etc/ld.so.cache"
    before = os.stat(cache)
    standalone("--ldconfig=/usr/bin/true")
    assert os.stat(cache) == before
    standalone("--ldconfig=@/sbin/ldconfig")
    assert os.stat(cache) != before
