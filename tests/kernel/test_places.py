"""The checkout may lie where hosts, nodes and containers of tests cover the host's directories."""

from __future__ import annotations

import os

from support import need, run
from support.covered import uncover


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
