"""Programs in a time namespace of their own that hide how far their clock is ahead, in virtual time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import TypeAlias

import pytest
from support import need, run
from support.clocks import apart
from support.simdriver import SOURCES, WARN
from support.vgpucap import PERIOD, Capped
from support.virtual import World, device_time

Covering: TypeAlias = Callable[[Capped, str], "subprocess.Popen[str]"]

HONEST = ("honest", "1000", "1000")
# What is mounted where: an empty directory, a tree like procfs, or files of it.
COVERS = {
    "hidden": ("empty", "/proc"),
    "another-tree": ("forged", "/proc"),
    "offsets": ("forged/self/timens_offsets", "/proc/self/timens_offsets"),
    "links": ("forged/self/ns", "/proc/thread-self/ns"),
    "self": ("forged/self", "/proc/self"),
}


@pytest.fixture
def covering(scratch: str, world: World, take_time: str) -> Covering:
    """Factory: an honest program two seconds ahead, whose /proc says that it is not ahead."""
    library = os.path.join(scratch, "cover_proc.so")
    source = os.path.join(SOURCES, "cover_proc.c")
    run(need("gcc"), *WARN, "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", "-o", library, source)
    os.makedirs(os.path.join(scratch, "empty"))
    for name in ("self", "thread-self"):
        os.makedirs(os.path.join(scratch, "forged", name, "ns"))
        for link in ("time", "time_for_children"):
            os.symlink("time:[4026531834]", os.path.join(scratch, "forged", name, "ns", link))
        offsets = os.path.join(scratch, "forged", name, "timens_offsets")
        with open(offsets, "w", encoding="ascii") as file:
            file.write("monotonic           0         0\nboottime            0         0\n")

    def start(slice_: Capped, how: str) -> subprocess.Popen[str]:
        source, target = COVERS[how]
        preload = f"LD_PRELOAD={world.variables(library)['LD_PRELOAD']}"
        cover = f"COVER={os.path.join(scratch, source)} {target}"
        words = [*apart(2), "env", preload, cover, take_time, *HONEST]
        pipe = subprocess.PIPE
        return world.start(words, slice_.environment(), stdout=pipe, stderr=pipe, text=True)

    return start


def said_by(world: World, process: subprocess.Popen[str]) -> str:
    """What it wrote, when it has ended, as is due."""
    world.finish(process, 0.1)
    out, errors = process.communicate()
    return f"{out}{errors}"


@pytest.mark.parametrize("how", COVERS)
def test_without_the_hosts_time_there_is_no_launch(
    world: World, capped: Callable[..., Capped], take_time: str, covering: Covering, how: str
) -> None:
    """Beside it, a program of the slice that knows the time has the cap, and no more."""
    slice_ = capped(program=take_time)
    slice_.cap(10)
    plain = world.start([take_time, *HONEST], slice_.environment(), stdout=subprocess.DEVNULL)
    world.run(1)
    before = device_time(slice_.root).total
    refused = covering(slice_, how)
    world.run(2.1)
    had = device_time(slice_.root).total - before
    world.kill(plain)
    assert "a launch: 304" in said_by(world, refused)
    assert had == pytest.approx(0.21, abs=2 * PERIOD * 0.1)
    assert any(line.endswith("a slice with a cap needs /proc") for line in slice_.said())


def test_with_a_cap_that_comes_later_there_is_no_launch(
    world: World, capped: Callable[..., Capped], take_time: str, covering: Covering
) -> None:
    """Without one nobody asks for the time. With one, launches are held back for two seconds, and then denied."""
    slice_ = capped(program=take_time)
    slice_.cap(100)
    process = covering(slice_, "hidden")
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
