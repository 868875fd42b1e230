"""What a user other than root may enter of a test's host (engines.py)."""

from __future__ import annotations

import os
import stat

from . import REPO
from .cache import cache
from .engines import Host


def reachable(host: Host) -> None:
    """Let every user of the host have the checkout and the cache at their paths, also below root's home."""
    paths = (REPO, os.path.realpath(cache()))
    # What others may not enter: the same paths, in directories of this host's own.
    for hidden in {_closed(path) for path in paths} - {""}:
        kept = [path for path in paths if _closed(path) == hidden]
        host.sh(
            "; ".join(f"mkdir -p /run/keep{path}; mount --rbind {path} /run/keep{path}" for path in kept)
        )
        host.sh(f"mount -t tmpfs -o mode=755 tmpfs {hidden}")
        host.sh("; ".join(f"mkdir -p {path}; mount --move /run/keep{path} {path}" for path in kept))


def _closed(path: str) -> str:
    """The outermost directory above a path that only its owner may enter, "" where there is none."""
    above = ""
    for part in path.strip("/").split("/"):
        above = f"{above}/{part}"
        if not os.stat(above).st_mode & stat.S_IXOTH:
            return above
    return ""
