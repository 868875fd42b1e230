"""cuCheckpoint* of the simulated driver: memory that goes and comes back, calls that wait, and what it refuses."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import pytest
from support import MIB
from support.checkpoint import CHECKPOINTED, LOCKED, RUNNING, calls, state
from support.simdriver import Client, library_directory

from nvc.testing.sim.layout import STATE
from nvc.testing.sim.state import usage

Root = Callable[..., str]
Start = Callable[..., Client]

MEMORY, NOT_INITIALIZED, SYSTEM, ILLEGAL, NOT_READY, UNSUPPORTED = 2, 3, 304, 401, 600, 801
AWAY = ("Lock", "Checkpoint")
BACK = ("Restore", "Unlock")


def library(root: str) -> str:
    return os.path.join(library_directory(root), "libcuda.so.1")


def waits(one: Client) -> bool:
    """Whether a call that was sent does not return in a while."""
    assert one.process.stdout is not None
    return not select.select([one.process.stdout], [], [], 0.2)[0]


def test_memory_goes_and_comes_back(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one, other = client(root).start(), client(root).start()
    address = one.number("alloc", 1000 * MIB)
    one.call("write", address, 4711)
    before = other.used()
    assert calls(library(root), one.process.pid, *AWAY) == [0, 0]
    assert other.used() == before - 1000 - 518
    assert {process.pid: process.bytes for process in usage(os.path.join(root, STATE))}[one.process.pid] == 0
    assert state(library(root), one.process.pid) == CHECKPOINTED
    one.send("read", address)
    assert waits(one)
    assert calls(library(root), one.process.pid, "Restore", "GetState") == [0, -1 - LOCKED]
    assert other.used() == before and waits(one)
    assert calls(library(root), one.process.pid, "Unlock", "GetState") == [0, -1 - RUNNING]
    assert one.receive() == ["4711"]


def test_a_full_device_takes_nobody_back(sim_root: Root, client: Start) -> None:
    """As with driver 580: nor later, when it has room."""
    root = sim_root()
    one, other = client(root).start(), client(root).start()
    one.call("alloc", 1000 * MIB)
    assert calls(library(root), one.process.pid, *AWAY) == [0, 0]
    free, _ = other.call("info")
    kept = other.number("alloc", int(free) // MIB // 2 * 2 * MIB - 600 * MIB)
    assert calls(library(root), one.process.pid, "Restore", "GetState") == [MEMORY, -1 - CHECKPOINTED]
    other.call("free", kept)
    assert calls(library(root), one.process.pid, "Restore", "GetState") == [SYSTEM, -1 - CHECKPOINTED]


def test_work_in_flight_is_waited_for(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one = client(root).start()
    one.call("launch", "sim_spin_400ms", 1)
    assert calls(library(root), one.process.pid, "Lock=50", "GetState") == [NOT_READY, -1 - RUNNING]
    assert calls(library(root), one.process.pid, "Lock=20000", "GetState") == [0, -1 - LOCKED]
    assert calls(library(root), one.process.pid, "Unlock") == [0]
    one.call("sync")


def test_the_order_of_steps(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one = client(root).start()
    pid = one.process.pid
    assert calls(library(root), pid, "Unlock", "Checkpoint", "Restore") == [ILLEGAL] * 3
    assert calls(library(root), pid, "Lock", "Lock", "Restore") == [0, ILLEGAL, ILLEGAL]
    assert calls(library(root), pid, "Checkpoint", "Checkpoint", "Unlock") == [0, ILLEGAL, ILLEGAL]
    assert calls(library(root), pid, *BACK) == [0, 0]
    assert calls(library(root), os.getpid(), "GetState", "Lock") == [NOT_INITIALIZED] * 2
    assert calls(library(root), 1 << 22, "GetState") == [SYSTEM]


@pytest.mark.parametrize("kind", ["managed", "ipc"])
def test_what_cannot_be_saved(sim_root: Root, client: Start, kind: str) -> None:
    root = sim_root()
    one = client(root).start()
    address = one.number("managed" if kind == "managed" else "alloc", 4 * MIB)
    if kind == "managed":
        one.call("write", address, 1)
    else:
        client(root).start().call("ipc-open", one.call("ipc-get", address)[0])
    asked = calls(library(root), one.process.pid, "Lock", "Checkpoint", "GetState", "Unlock")
    assert asked == [0, UNSUPPORTED, -1 - LOCKED, 0]
    one.call("info")


def test_an_old_driver_has_no_such_calls(sim_root: Root, client: Start) -> None:
    root = sim_root(cuda_version="12.4")
    one = client(root).start()
    assert calls(library(root), one.process.pid, "GetState", "Lock") == [UNSUPPORTED] * 2


def test_a_process_that_dies_checkpointed_leaves_nothing(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one, other = client(root).start(), client(root).start()
    one.call("alloc", 1000 * MIB)
    assert calls(library(root), one.process.pid, *AWAY) == [0, 0]
    one.kill()
    other.call("another", 1)
    fresh = client(root).start()
    assert fresh.used() == 2 * 518
    assert state(library(root), fresh.process.pid) == RUNNING
