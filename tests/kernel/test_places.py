"""The checkout may lie where hosts, nodes and containers of tests cover the host's directories."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from support import CLEAN_ENV, REPO, need, run
from support.covered import uncover


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest) -> Iterator[str]:
    """This checkout in a directory of the one that the parameter names, in the mount namespace of these tests."""
    with tempfile.TemporaryDirectory(prefix="nvc test ", dir=request.param) as directory:
        path = f"{directory}/a checkout"
        os.mkdir(path)
        run("mount", "--bind", REPO, path)
        try:
            yield path
        finally:
            run("umount", "--lazy", path)


def test_what_is_covered_comes_back(scratch: str) -> None:
    """With its files and its mounts; what nothing covers is left alone."""
    inner, other = f"{scratch}/srv/it's a place/nvc", f"{scratch}/other"
    for path in (f"{inner}/build", other):
        os.makedirs(path)
    script = f"""set -e
    mount -t tmpfs tmpfs "$1/build" && touch "$1/build/made" "$1/file"
    {uncover(inner, other)}
    mount -t tmpfs tmpfs "$2" && uncover
    cd "$2" && find . | sort && ! mountpoint -q "$3" """
    words = ("/bin/sh", "-c", script, "sh", inner, f"{scratch}/srv", other)
    said = run(need("unshare"), "--mount", "--propagation=private", *words).stdout
    place = "./it's a place"
    names = [".", place, *(f"{place}/nvc{name}" for name in ("", "/build", "/build/made", "/file"))]
    assert said.splitlines() == names


@pytest.mark.parametrize("elsewhere", ["/srv", "/dev/shm"], indirect=True)
def test_a_fresh_container_of_a_checkout_that_it_covers(elsewhere: str) -> None:
    words = (f"{elsewhere}/.venv/bin/python", f"{elsewhere}/tests/support/fresh.py", "--rounds=1")
    said = run(*words, "git log -1 --format=%H; ls packaging/setup; pwd", env=CLEAN_ENV).stdout
    head = run("git", "-C", REPO, "rev-parse", "HEAD").stdout
    assert f"\n{head}packaging/setup\n/srv/some place/nvc\n" in said
