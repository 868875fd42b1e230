"""A program in a time namespace of its own that hides how far its clock is ahead, in virtual time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import TypeAlias

import pytest
from support import need, run
from support.clocks import apart
from support.simdriver import SOURCES, WARN
from support.vgpucap import Capped
from support.virtual import World, device_time

Covering: TypeAlias = Callable[..., "subprocess.Popen[str]"]

HONEST = ("honest", "1000", "1000")


@pytest.fixture
def covering(scratch: str, world: World, take_time: str) -> Covering:
    """Factory: an honest program whose clock is two seconds ahead, or what is said, without /proc."""
    library = os.path.join(scratch, "cover_proc.so")
    source = os.path.join(SOURCES, "cover_proc.c")
    run(need("gcc"), *WARN, "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", "-o", library, source)
    os.makedirs(os.path.join(scratch, "empty"))

    def start(slice_: Capped, ahead: int = 2) -> subprocess.Popen[str]:
        preload = f"LD_PRELOAD={world.variables(library)['LD_PRELOAD']}"
        cover = f"COVER={scratch}/empty /proc"
        words = [*apart(ahead), "env", preload, cover, take_time, *HONEST]
        pipe = subprocess.PIPE
        return world.start(words, slice_.environment(), stdout=pipe, stderr=pipe, text=True)

    return start


def said_by(world: World, process: subprocess.Popen[str]) -> str:
    """What it wrote, when it has ended, as is due."""
    world.finish(process, 0.1)
    out, errors = process.communicate()
    return f"{out}{errors}"


def test_with_a_cap_that_comes_later_there_is_no_launch(
    world: World, capped: Callable[..., Capped], take_time: str, covering: Covering
) -> None:
    """Without one nobody asks for the time. With one, launches are held back for two seconds, and then denied."""
    slice_ = capped(program=take_time)
    slice_.cap(100)
    process = covering(slice_)
    world.run(1)
    before = device_time(slice_.root).total
    world.run(1)
    assert device_time(slice_.root).total - before >= 0.9
    slice_.cap(10)
    world.run(0.1)
    before = device_time(slice_.root).total
    world.run(2)
    assert device_time(slice_.root).total == before
    assert "a launch: 304" in said_by(world, process)


def test_a_clock_that_is_behind_does_not_lift_a_cap(
    world: World, capped: Callable[..., Capped], take_time: str, covering: Covering
) -> None:
    """nvcd kept time, and has ended: by that clock it would keep it for two seconds more."""
    slice_ = capped(program=take_time)
    slice_.cap(100)
    process = covering(slice_, -2)
    world.run(1)
    slice_.cap(10, kept_until=world.now_ns + 10**8)
    world.run(0.2)
    before = device_time(slice_.root).total
    world.run(1.5)
    assert device_time(slice_.root).total == before
    world.run(0.4)
    assert "a launch: 304" in said_by(world, process)
