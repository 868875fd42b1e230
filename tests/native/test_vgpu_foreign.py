"""Memory of another container counts for whoever maps it, too: its exporter may be gone the next moment."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support import GIB, MIB
from support.simdriver import library_directory
from support.vgpushim import CONTEXT, OUT_OF_MEMORY, Process, Slice, end_all

LEFT = 2 * GIB - CONTEXT


@pytest.fixture
def made(vgpu: Slice) -> Slice:
    return vgpu


@pytest.fixture
def stranger(made: Slice) -> Iterator[Process]:
    """A process of the same driver that no book knows."""
    yield made.process(LD_LIBRARY_PATH=library_directory(made.root)).start()
    end_all([made])


def test_by_a_handle(made: Slice, stranger: Process) -> None:
    path = os.path.join(made.root, "handle")
    stranger.do("alloc a 512m", f"ipcget a {path}")
    process = made.start().do(f"ipcopen b {path}", f"ipcopen c {path}")
    assert made.used() == CONTEXT + 1024 * MIB  # two mappings: the driver shows them at two addresses
    process.do("ipcclose b", "ipcclose c")
    assert made.used() == CONTEXT
    process.do(f"alloc z {LEFT - 100 * MIB}")
    assert process.code(f"ipcopen b {path}") == OUT_OF_MEMORY
    assert made.used() == 2 * GIB - 100 * MIB


def test_by_a_descriptor(made: Slice, stranger: Process) -> None:
    stranger.do("create v 512m 0 1 1", "export v f")
    (fd,) = stranger.ask("show f")
    process = made.start().do(f"importfrom w {stranger.pid} {fd}", "reserve r 512m")
    assert made.used() == CONTEXT
    process.do("map r w 512m 0")
    assert made.used() == CONTEXT + 512 * MIB
    process.do("release w")
    assert made.used() == CONTEXT + 512 * MIB
    process.do("unmap r 512m")
    assert made.used() == CONTEXT
    process.do(f"alloc z {LEFT - 100 * MIB}", f"importfrom w {stranger.pid} {fd}")
    assert process.code("map r w 512m 0") == OUT_OF_MEMORY
    process.do("release w", "free z", f"importfrom w {stranger.pid} {fd}", "map r w 512m 0", "unmap r 512m")
    process.do("release w")
    assert made.used() == CONTEXT


def test_by_a_pool(made: Slice, stranger: Process) -> None:
    data = os.path.join(made.root, "data")
    stranger.do("sharedpool p 0", "frompool a 500m p", "exportpool p f", f"exportpointer a {data}")
    (fd,) = stranger.ask("show f")
    process = made.start().do(f"importpool q {stranger.pid} {fd}", f"importpointer b q {data}")
    assert made.used() == CONTEXT + 500 * MIB
    process.do("free b", f"importpointer b q {data}", "freeasync b", "sync")
    assert made.used() == CONTEXT
    process.do(f"alloc z {LEFT - 100 * MIB}")
    assert process.code(f"importpointer b q {data}") == OUT_OF_MEMORY
