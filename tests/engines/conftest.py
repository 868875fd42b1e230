"""A host for each module: its own /etc, /run and daemons, with nvc in /usr/local and a simulated driver."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest
from support.engines import Host


@pytest.fixture(scope="module")
def host(stage: str) -> Iterator[Host]:
    """The host of a module, with two simulated GPUs."""
    directory = tempfile.mkdtemp(prefix="nvc-host-")
    try:
        with Host(directory) as made:
            made.simulate(gpus=2)
            made.rootfs()
            yield made
    finally:
        shutil.rmtree(directory)
