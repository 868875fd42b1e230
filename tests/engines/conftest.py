"""A host for each module: its own /etc, /run and daemons, with nvc in /usr/local and a simulated driver.

And for packages, a Debian: tests/support/debian.py.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest
from support import generations
from support.debian import APT, Debian
from support.debian import ready as ready_layers
from support.engines import Host
from support.packages import build, build_newer, deb
from support.vgpucap import work  # noqa: F401
from support.vgpushim import tool  # noqa: F401


@pytest.fixture(scope="module")
def generation() -> str:
    """Which engines the host has: the distribution's, unless a module names others in GENERATIONS."""
    return generations.DEBIAN


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Those of GENERATIONS beside the distribution's are for `make test-engines`."""
    named = getattr(metafunc.module, "GENERATIONS", ())
    if named and "generation" in metafunc.fixturenames:
        marks = {generations.DEBIAN: ()}
        params = [pytest.param(name, marks=marks.get(name, pytest.mark.engines)) for name in named]
        metafunc.parametrize("generation", params, scope="module")


@pytest.fixture(scope="module")
def host(stage: str, generation: str) -> Iterator[Host]:
    """The host of a module, with two simulated GPUs."""
    directory = tempfile.mkdtemp(prefix="nvc-host-")
    try:
        with Host(directory, generation) as made:
            made.simulate(gpus=2)
            made.rootfs()
            yield made
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def packages(stage: str) -> Iterator[str]:
    """The directory with what `make packages ARCH=all` makes."""
    with tempfile.TemporaryDirectory(prefix="nvc-packages-") as directory:
        yield build(directory, "ARCH=all")


@pytest.fixture(scope="session")
def newer(packages: str) -> Iterator[str]:
    """The directory with packages of a higher version."""
    with tempfile.TemporaryDirectory(prefix="nvc-newer-") as directory:
        yield build_newer(directory)


@pytest.fixture(scope="session")
def ready() -> str:
    """The layers of a Debian that has what nvc's package depends on."""
    return ready_layers()


@pytest.fixture(scope="session")
def installed(packages: str, ready: str) -> Iterator[str]:
    """The layers of a Debian with nvc, and its package in /root."""
    with tempfile.TemporaryDirectory(prefix="nvc-debian-") as directory:
        with Debian(directory, ready, kept=True) as debian:
            debian.put(deb(packages), "/root")
            debian.sh(f"{APT} install -y /root/nvc_*.deb")
            layers = debian.layer
        yield layers
