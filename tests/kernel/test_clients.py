"""Calls as programs make them that know nvidia-container-cli: enroot, LXC, soperator, Charliecloud, Apptainer."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support import run
from support.rootfs import LIBS

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


def test_what_is_left_in_an_image_has_the_mode_of_the_driver_s_file(
    standalone: Standalone, driver: str
) -> None:
    """So a start without GPUs finds a program that succeeds. Clients compare the modes, too."""
    standalone()
    smi = f"{standalone.rootfs}/usr/bin/nvidia-smi"
    assert os.stat(smi).st_mode == os.stat(f"{driver}/usr/bin/nvidia-smi").st_mode & ~0o022
    library = f"{LIBS}/libcuda.so.580.159.04"
    assert os.stat(standalone.rootfs + library).st_mode & 0o777 == 0o644
    assert os.stat(f"{standalone.rootfs}/dev/nvidia0").st_mode & 0o777 == 0o644
    assert run("sh", "-c", f"{smi} -L").stdout == ""


def test_placeholders_of_a_caller_are_no_files_of_the_image(standalone: Standalone) -> None:
    """Those of soperator hold a few words."""
    for name, said in (("soperator gpu placeholder\\n", False), ("#!/bin/sh\\n" + "# a program\\n" * 9, True)):
        path = f"{standalone.rootfs}/usr/bin/nvidia-smi"
        with open(path, "w", encoding="ascii") as out:
            out.write(name)
        assert ("is covered: /usr/bin/nvidia-smi" in standalone().stderr) == said
