"""NVML libraries that misbehave, compiled from tests/data/nvml, in driver roots of their own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

import pytest

from support import REPO, need, run
from support.drivertree import LIBS, VERSION, DriverTree

SOURCE = os.path.join(REPO, "tests/data/nvml/nvml.c")
NvmlTree = Callable[..., DriverTree]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """Factory: `built(trouble, *defines)` is that library, compiled once for all troubles."""
    directory = tmp_path_factory.mktemp("nvml")
    with open(SOURCE, encoding="ascii") as source:
        troubles = re.findall(r"^    ([A-Z_]+),", source.read(), re.MULTILINE)

    def build(trouble: str, *defines: str) -> bytes:
        path = directory / "-".join(["nvml", *defines]).replace('"', "")
        if not path.exists():
            run(
                need("gcc"), "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-fvisibility=hidden",
                "-Wl,-soname,libnvidia-ml.so.1", *(f"-D{define}" for define in defines), "-o", str(path), SOURCE,
                "-lpthread",
            )  # fmt: skip
        number = troubles.index(trouble).to_bytes(4, sys.byteorder)
        return path.read_bytes().replace(b"TROUBLE=" + bytes(4), b"TROUBLE=" + number)

    return build


@pytest.fixture
def nvml_tree(scratch: str, built: Callable[..., bytes]) -> NvmlTree:
    """Factory: `nvml_tree(trouble)` is a driver root with that NVML and little else."""
    count = 0

    def make(trouble: str = "NONE", *defines: str, directory: str = LIBS) -> DriverTree:
        nonlocal count
        count += 1
        tree = DriverTree(f"{scratch}/driver{count}")
        tree.file(f"{directory}/libnvidia-ml.so.{VERSION}", built(trouble, *defines), 0o755)
        tree.link(f"libnvidia-ml.so.{VERSION}", f"{directory}/libnvidia-ml.so.1")
        return tree

    return make
