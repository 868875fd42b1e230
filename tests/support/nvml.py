"""NVML libraries that misbehave, compiled from tests/data/nvml, in driver roots of their own."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from support import REPO, need, run
from support.drivertree import LIBS, VERSION, DriverTree

SOURCE = os.path.join(REPO, "tests/data/nvml/nvml.c")
NvmlTree = Callable[..., DriverTree]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Factory: `built(trouble, *defines)` is the path of that library, compiled once."""
    directory = tmp_path_factory.mktemp("nvml")

    def build(trouble: str, *defines: str) -> str:
        path = directory / "-".join([trouble, *defines]).replace('"', "")
        if not path.exists():
            flags = [f"-D{define}" for define in (f"TROUBLE={trouble}", *defines)]
            run(
                need("gcc"), "-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-fvisibility=hidden",
                "-Wl,-soname,libnvidia-ml.so.1", *flags, "-o", str(path), SOURCE, "-lpthread",
            )  # fmt: skip
        return str(path)

    return build


@pytest.fixture
def nvml_tree(scratch: str, built: Callable[..., str]) -> NvmlTree:
    """Factory: `nvml_tree(trouble)` is a driver root with that NVML and little else."""
    count = 0

    def make(trouble: str = "NONE", *defines: str, directory: str = LIBS) -> DriverTree:
        nonlocal count
        count += 1
        tree = DriverTree(f"{scratch}/driver{count}")
        with open(built(trouble, *defines), "rb") as file:
            tree.file(f"{directory}/libnvidia-ml.so.{VERSION}", file.read(), 0o755)
        tree.link(f"libnvidia-ml.so.{VERSION}", f"{directory}/libnvidia-ml.so.1")
        return tree

    return make
