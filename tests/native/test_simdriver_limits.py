"""The simulated driver 615: limits of memory by cgroup, as NVIDIA documents them for its kernel module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support import MIB, need
from support.device_cgroup import Group
from support.memorylimits import (
    NO_LIMIT,
    NO_PERMISSION,
    NOT_FOUND,
    get_limits,
    set_limits,
)
from support.simdriver import Program

from nvc.testing.sim.report import report

Start = Callable[..., Program]
CONTEXT = 518  # MiB
OUT_OF_MEMORY = 2


@pytest.fixture
def root(sim_root: Callable[..., str]) -> str:
    return sim_root(driver_version="615.71.09", cuda_version="13.4")


@pytest.fixture
def uuid(root: str) -> str:
    return report(root).gpus[0].uuid


@pytest.fixture
def group() -> Iterator[Group]:
    with Group.make(2) as made:
        yield made


@pytest.fixture
def inside(root: str, client: Start) -> Iterator[Callable[[Group], Program]]:
    """Starts a program with a context in a cgroup, by the driver's own libraries."""
    started = []

    def start(group: Group) -> Program:
        started.append(client(root))
        group.enter(started[-1].pid)
        return started[-1].start()

    yield start
    for one in started:
        one.end()


def test_allocations_of_all_processes_count(
    root: str, uuid: str, group: Group, inside: Callable[[Group], Program]
) -> None:
    assert get_limits(root, uuid, group.path) == (0, NO_LIMIT, 0)
    assert set_limits(root, uuid, group.path, 0, 2048 * MIB) == 0
    one = inside(group)
    assert one.info() == ((2048 - CONTEXT) * MIB, 2048 * MIB)
    one.do(f"alloc a {500 * MIB}")
    two = inside(group)
    left = 2048 - 2 * CONTEXT - 500
    assert two.code(f"alloc b {(left + 1) * MIB}") == OUT_OF_MEMORY
    assert two.code(f"alloc b {left * MIB}") == 0
    assert one.code(f"alloc b {2 * MIB}") == OUT_OF_MEMORY
    assert get_limits(root, uuid, group.path) == (0, 2048 * MIB, 2048 * MIB)
    two.end()
    assert one.code(f"alloc b {left * MIB}") == 0


def test_managed_memory_is_not_held(
    root: str, uuid: str, group: Group, inside: Callable[[Group], Program]
) -> None:
    """Nor does the driver count it: the shim does."""
    assert set_limits(root, uuid, group.path, 0, 1024 * MIB) == 0
    one = inside(group)
    one.do("managed a 2g", "write a 1")  # it is on the device now
    assert one.code(f"alloc b {600 * MIB}") == OUT_OF_MEMORY
    assert one.info() == ((1024 - CONTEXT) * MIB, 1024 * MIB)
    assert get_limits(root, uuid, group.path)[2] == CONTEXT * MIB


def test_everybody_may_read_limits(root: str, uuid: str, group: Group) -> None:
    assert set_limits(root, uuid, group.path, MIB, 2 * MIB) == 0
    drop = (need("setpriv"), "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
    assert set_limits(root, uuid, group.path, 0, MIB, drop) == NO_PERMISSION
    assert get_limits(root, uuid, group.path, drop) == (MIB, 2 * MIB, 0)


def test_what_is_refused(root: str, uuid: str, group: Group) -> None:
    for path in (f"{group.path}/gone", group.mount, "/tmp", "relative"):
        assert set_limits(root, uuid, path, 0, MIB) == NOT_FOUND
    assert set_limits(root, uuid, group.path, 2 * MIB, MIB) == 2
    drop = (need("setpriv"), "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    assert set_limits(root, uuid, group.path, 0, MIB, drop) == NO_PERMISSION
