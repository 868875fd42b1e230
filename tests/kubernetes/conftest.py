"""One cluster for all tests, with nvc as docs/kubernetes.md installs it, and one without anything for charts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from support import REPO
from support.builds import make
from support.cluster import Cluster, programs

#: What `make image` and `make chart` make.
MADE = os.path.join(REPO, "build/kubernetes")


@pytest.fixture(scope="session")
def made(stage: str) -> str:
    """The directory with nvc.tar, nvc-VERSION.tgz and nvc.yaml."""
    make("image")
    make("chart", f"HELM={programs()}/helm")
    return MADE


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster of two nodes, in a directory on a disk."""
    directory = tempfile.mkdtemp(prefix="nvc-cluster-", dir="/var/tmp")
    try:
        with Cluster(directory, nodes=2) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)
