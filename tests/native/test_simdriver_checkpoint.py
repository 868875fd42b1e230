"""cuCheckpoint* of the simulated driver: calls that wait, and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support import MIB
from support.checkpoint import CHECKPOINTED, LOCKED, RUNNING, calls
from support.simdriver import Program, library_directory

Root = Callable[..., str]
Start = Callable[..., Program]

MEMORY, NOT_INITIALIZED, SYSTEM, ILLEGAL, NOT_READY, UNSUPPORTED = 2, 3, 304, 401, 600, 801
AWAY = ("Lock", "Checkpoint")
BACK = ("Restore", "Unlock")


def library(root: str) -> str:
    return os.path.join(library_directory(root), "libcuda.so.1")


def test_a_full_device_takes_nobody_back(sim_root: Root, client: Start) -> None:
    """As with driver 580: nor later, when it has room."""
    root = sim_root()
    one, other = client(root).start(), client(root).start()
    one.do(f"alloc a {1000 * MIB}")
    assert calls(library(root), one.process.pid, *AWAY) == [0, 0]
    other.do(f"alloc a {other.info()[0] // MIB // 2 * 2 * MIB - 600 * MIB}")
    assert calls(library(root), one.process.pid, "Restore", "GetState") == [MEMORY, -1 - CHECKPOINTED]
    other.do("free a")
    assert calls(library(root), one.process.pid, "Restore", "GetState") == [SYSTEM, -1 - CHECKPOINTED]


def test_work_in_flight_is_waited_for(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one = client(root).start()
    one.do("spin sim_spin_400ms 1")
    assert calls(library(root), one.process.pid, "Lock=50", "GetState") == [NOT_READY, -1 - RUNNING]
    assert calls(library(root), one.process.pid, "Lock=20000", "GetState") == [0, -1 - LOCKED]
    assert calls(library(root), one.process.pid, "Unlock") == [0]
    one.do("wait")


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
    one.do(f"{'managed' if kind == 'managed' else 'alloc'} a 4m")
    if kind == "managed":
        one.do("write a 1")
    else:
        one.do(f"ipcget a {root}/handle")
        client(root).start().do(f"ipcopen b {root}/handle")
    asked = calls(library(root), one.process.pid, "Lock", "Checkpoint", "GetState", "Unlock")
    assert asked == [0, UNSUPPORTED, -1 - LOCKED, 0]
    one.info()
