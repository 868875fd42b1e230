"""Several processes on one simulated driver: shared accounts, deaths, and time slices."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable

import pytest
from support import MIB, PATIENCE
from support.simdriver import Program

from nvc.base.errors import InputError
from nvc.testing.sim import destroy
from nvc.testing.sim.layout import STATE
from nvc.testing.sim.report import report

Root = Callable[..., str]
Start = Callable[..., Program]

CONTEXT = 518  # MiB of a context on an H100


def test_memory_lives_as_long_as_what_a_child_inherited(sim_root: Root, client: Start) -> None:
    """As with the driver's own descriptors."""
    root = sim_root()
    one, other = client(root).start(), client(root).start()
    one.do(f"alloc a {100 * MIB}")
    (child,) = map(int, one.do("orphan c").ask("show c"))
    try:
        one.kill()
        assert other.used() == 2 * CONTEXT + 100
    finally:
        handle = os.pidfd_open(child)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        _wait(handle)
    assert other.used() == CONTEXT


def _wait(pidfd: int) -> None:
    """Until a process that is not our child has ended."""
    import select

    assert select.select([pidfd], [], [], PATIENCE)[0]
    os.close(pidfd)


def test_closed_descriptors_do_no_harm(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one, other = client(root).start(), client(root).start()
    one.do(f"alloc a {100 * MIB}")
    one.do("closefrom")
    assert other.used() == 2 * CONTEXT + 100
    one.do(f"alloc a {50 * MIB}")
    assert {use.used // MIB for use in report(root).processes} == {CONTEXT, CONTEXT + 150}
    assert other.used() == 2 * CONTEXT + 150
    one.kill()
    assert other.used() == CONTEXT


def test_a_new_state_is_not_taken_for_the_old(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one = client(root).start()
    path = os.path.join(root, STATE)
    os.rename(path, path + ".old")
    with open(path, "wb") as state:
        state.truncate(os.path.getsize(path + ".old"))
    one.do(f"alloc a {MIB}")
    one.do("closefrom")
    assert one.code(f"alloc b {100 * MIB}") == 304


@pytest.mark.parametrize("damage", ["missing", "short", "garbage", "other version"])
def test_a_bad_state_is_refused(damage: str, sim_root: Root, client: Start) -> None:
    root = sim_root()
    path = os.path.join(root, STATE)
    if damage == "missing":
        os.unlink(path)
    elif damage == "short":
        os.truncate(path, 4096)
    else:
        with open(path, "r+b") as state:
            state.seek(8 if damage == "other version" else 0)
            state.write(struct.pack("<I", 77))
    assert client(root).code("init") == 304


def test_a_root_in_use_is_not_removed(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one = client(root).start()
    with pytest.raises(InputError, match=f"in use by {one.pid}"):
        destroy(root)
    one.end()
    destroy(root)
    assert not os.path.exists(root)
