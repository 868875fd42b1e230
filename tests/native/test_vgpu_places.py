"""Slices in other namespaces than the host's: of pids, and of mounts that cannot be written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

import pytest
from support import GIB, MIB, REPO, need
from support.covered import uncover
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Slice

from nvc.model.slices import layout


@pytest.fixture
def made(plain_slice: Callable[..., Slice]) -> Slice:
    return plain_slice()


def wrap(made: Slice, *words: str) -> None:
    """Processes of the slice start by way of a script."""
    path = os.path.join(made.root, "wrapper")
    with open(path, "w", encoding="utf-8") as out:
        out.write("\n".join(["#!/bin/sh -e", *words[:-1], f'exec {words[-1]} "{made.tool}" "$@"', ""]))
    os.chmod(path, stat.S_IRWXU)
    made.tool = path


def test_the_same_pid_in_two_namespaces(made: Slice) -> None:
    wrap(made, f"{need('unshare')} --pid --fork --kill-child")
    one, two = made.start().do("alloc a 64m"), made.start().do("alloc a 32m")
    assert made.agree() == 2 * CONTEXT + 96 * MIB
    assert two.code("alloc b 1g") == OUT_OF_MEMORY
    one.end()
    assert made.agree() == CONTEXT + 32 * MIB
    two.do("alloc b 1g")


def test_a_pid_that_is_used_again(made: Slice) -> None:
    """What a dead process left is not its successor's."""
    made.start().do("alloc a 512m").kill()
    other = made.process().do("init")
    fd = os.open(made.path("nvc/ledger/ledger"), os.O_RDWR)
    os.pwrite(fd, other.pid.to_bytes(4, "little"), layout.LEDGER_HEADER.size)
    os.close(fd)
    other.do("primary 0", f"alloc a {2 * GIB - CONTEXT}")
    assert made.agree() == 2 * GIB


def test_nothing_but_the_ledger_can_be_written(made: Slice) -> None:
    mount, ledger = need("mount"), made.path("nvc/ledger")
    wrap(
        made,
        f'[ "$NVC_ALONE" ] || NVC_ALONE=1 exec {need("unshare")} --mount "$0" "$@"',
        f"{mount} --bind {made.libraries} {made.libraries}",
        f"{mount} --bind {ledger} {ledger}",
        f"{mount} -o remount,bind,ro {made.libraries}",
        uncover(REPO),
        f"{mount} -t tmpfs -o noexec none /dev/shm && uncover && {mount} -o remount,ro,noexec /dev/shm",
        "",
    )
    process = made.start().do("alloc a 64m")
    assert made.agree() == CONTEXT + 64 * MIB
    assert process.code("alloc b 2g") == OUT_OF_MEMORY
